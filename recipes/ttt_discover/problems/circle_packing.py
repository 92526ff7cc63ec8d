"""Circle packing: n disjoint circles in the unit square, the sum of their radii as large as possible.

The certifier computes with fractions: every number of an answer is the decimal that was written, and a circle that overlaps another by
10⁻⁹ overlaps it. Nothing is rounded, so there is no tolerance to be exploited; NaN, infinities and numbers of absurd length are no numbers.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from recipes.ttt_discover.problems.contract import Problem, Refused, Verified
from reef.errors import ConfigError

BEST_KNOWN = {26: 2.6359830849, 32: 2.9395727712}
"""Shared by TTT-Discover (arXiv 2601.16175) and multistart SLSQP; only to put values on a scale."""
MOST_CIRCLES = 500
_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,60})?(?:[eE][+-]?\d{1,2})?")
"""So short that no fraction becomes large enough to be a burden."""
_OUTERMOST = re.compile(r"(?:^|[^\[\s])\s*+\[")
"""Where a list begins that is not the first thing in another: to try every bracket would take time by the square of their number."""
_MAX_CHARS = 200_000
_DIGITS = 300
"""More than any number has that :data:`_NUMBER` lets through."""


class Circle(NamedTuple):
    """Centre and radius."""

    x: Fraction
    y: Fraction
    r: Fraction


class CirclePacking(Problem):
    """``circle_packing:26``, ``circle_packing:32``."""

    name = "circle_packing"

    def __init__(self, size: int) -> None:
        if not 1 <= size <= MOST_CIRCLES:
            raise ConfigError(f"circle packing of {size} circles", hint=f"From 1 to {MOST_CIRCLES}; 26 and 32 are the usual ones.")
        super().__init__(size)

    def prompt(self, best: str) -> str:
        asked = (
            f"Place {self.size} circles in the unit square [0, 1] x [0, 1]. They must not overlap and must lie inside. Make the sum of"
            f" their radii as large as you can. Answer with a JSON list of {self.size} triples [x, y, r] and nothing else."
        )
        if not best:
            return asked
        value = float(self.verify(best).value)
        return f"{asked}\n\nA packing whose radii sum to {value:.6f}; find a better one:\n{best}"

    def verify(self, answer: str) -> Verified:
        circles = parse(answer)
        value = certify(circles, size=self.size)
        return Verified(value, "[" + ", ".join(f"[{', '.join(map(_written, circle))}]" for circle in circles) + "]")

    def score(self, value: Fraction) -> float:
        return min(1.0, max(0.0, float(value) / BEST_KNOWN.get(self.size, (self.size / 3.2) ** 0.5 * 1.2)))


def certify(circles: Sequence[Circle], *, size: int) -> Fraction:
    """The sum of the radii of a packing.

    Raises:
        Refused: it is none.
    """
    if len(circles) != size:
        raise Refused(f"{len(circles)} circles, where there must be {size}")
    for number, (x, y, r) in enumerate(circles):
        if r <= 0:
            raise Refused(f"circle {number} has no positive radius")
        if x < r or x + r > 1 or y < r or y + r > 1:
            raise Refused(f"circle {number} is not inside the square")
    for number, one in enumerate(circles):
        for other in range(number):
            two = circles[other]
            if (one.x - two.x) ** 2 + (one.y - two.y) ** 2 < (one.r + two.r) ** 2:
                raise Refused(f"circles {other} and {number} overlap")
    return sum((circle.r for circle in circles), Fraction(0))


def parse(answer: str) -> list[Circle]:
    """The circles of an answer: its last JSON list of triples, each number as it was written.

    Raises:
        Refused: there is none.
    """
    if len(answer) > _MAX_CHARS:
        raise Refused("the answer is too long")
    decoder = json.JSONDecoder(parse_float=_exact, parse_int=_exact, parse_constant=_exact)
    found: Any = None
    position = 0
    while (begins := _OUTERMOST.search(answer, position)) is not None:
        try:
            found, position = decoder.raw_decode(answer, begins.end() - 1)
        except (json.JSONDecodeError, RecursionError):
            position = begins.end()
    if not isinstance(found, list):
        raise Refused("there is no JSON list in the answer")
    circles = []
    for triple in found:
        if not (isinstance(triple, list) and len(triple) == 3 and all(isinstance(part, Fraction) for part in triple)):
            raise Refused("not a list of triples [x, y, r] of numbers")
        circles.append(Circle(*triple))
    return circles


def exact(rows: Sequence[Sequence[float]]) -> list[Circle]:
    """Circles from floats, each as the number it is."""
    return [Circle(*(Fraction(value) for value in row)) for row in rows]


def _exact(text: str) -> Fraction:
    if not _NUMBER.fullmatch(text):
        raise Refused(f"{text[:40]} is not a number that can be a coordinate")
    return Fraction(text)


def _written(value: Fraction) -> str:
    """The same number as JSON has it. It was a decimal, so this is exact."""
    with decimal.localcontext(prec=_DIGITS):
        return str((decimal.Decimal(value.numerator) / value.denominator).normalize())
