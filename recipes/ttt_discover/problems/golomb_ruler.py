"""Golomb ruler: marks at whole numbers from 0 to n, as many as possible, no two pairs of which are the same distance apart.

An answer is a list of numbers, which a model of a hundred million parameters can write, and counts as far as it is a ruler: so the first
attempts of such a model differ in what they are worth, and there is something to learn from. Nothing but search is known to find the best.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

from recipes.ttt_discover.problems.contract import Problem, Refused, Verified
from reef.errors import ConfigError

SHORTEST = (0, 1, 3, 6, 11, 17, 25, 34, 44, 55, 72, 85, 106, 127, 151, 177, 199, 216, 246, 283)
"""The length of the shortest ruler with one mark, with two and so on (OEIS A003022); only to put values on a scale."""
SIZES = range(1, SHORTEST[-1] + 1)
MAX_CHARS = 200_000
_NUMBER = re.compile(r"[0-9]+")


class GolombRuler(Problem):
    """``golomb_ruler:55``."""

    name = "golomb_ruler"

    def __init__(self, size: int) -> None:
        if size not in SIZES:
            raise ConfigError(f"a ruler of length {size}", hint=f"From {SIZES.start} to {SIZES.stop - 1}.")
        super().__init__(size)

    def prompt(self, best: str) -> str:
        asked = (
            f"Write a list of different whole numbers from 0 to {self.size}, as many as you can, so that no two pairs of them are equally"
            " far apart. Answer with the numbers and nothing else."
        )
        return f"{asked}\nA good one, to be improved: {best}" if best else asked

    def verify(self, answer: str) -> Verified:
        if len(answer) > MAX_CHARS:
            raise Refused("the answer is too long")
        found = list(marks((number[0] for number in _NUMBER.finditer(answer)), length=self.size))
        if not found:
            raise Refused("the answer does not begin with a mark")
        return Verified(Fraction(len(found)), ", ".join(map(str, found)))

    def score(self, value: Fraction) -> float:
        return min(1.0, float(value) / bisect.bisect_right(SHORTEST, self.size))


def marks(numbers: Iterable[str], *, length: int) -> Iterator[int]:
    """The first numbers, as far as they are the marks of a ruler."""
    there: list[int] = []
    distances: set[int] = set()
    for number in numbers:
        if len(number) > len(str(length)) or int(number) > length:
            return
        mark = int(number)
        new = {abs(mark - other) for other in there}
        if mark in there or len(new) < len(there) or new & distances:
            return
        there.append(mark)
        distances |= new
        yield mark
