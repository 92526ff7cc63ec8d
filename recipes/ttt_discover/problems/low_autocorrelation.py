"""Low autocorrelation: n signs s_i such that the energy Σ_k (Σ_i s_i·s_{i+k})², over all shifts k > 0, is as small as possible.

The value is Golay's merit factor n² / (2·energy). An answer is n letters, so a small model's own policy makes solutions, not a program it
would have to write; values are exact, and nothing but search is known to find the best ones.
"""

from __future__ import annotations

import re
from fractions import Fraction

from recipes.ttt_discover.problems.contract import Problem, Refused, Verified
from reef.errors import ConfigError

SIZES = range(3, 201)
SCALE = 15.0
"""A merit factor of as much is a score of 1; the largest one known is 14.08, of the Barker sequence of length 13."""
_RUN = re.compile(r"(?:[+-][ ,]*){2,}")


class LowAutocorrelation(Problem):
    """``low_autocorrelation:13``."""

    name = "low_autocorrelation"

    def __init__(self, size: int) -> None:
        if size not in SIZES:
            raise ConfigError(f"a sequence of {size} signs", hint=f"From {SIZES.start} to {SIZES.stop - 1}.")
        super().__init__(size)

    def prompt(self, best: str) -> str:
        asked = (
            f"Write a sequence of exactly {self.size} signs, each + or -, that looks as little as possible like itself when it is shifted."
            " Answer with the signs and nothing else."
        )
        return f"{asked}\nA good one, to be improved: {best}" if best else asked

    def verify(self, answer: str) -> Verified:
        found = _RUN.findall(answer)
        if not found:
            raise Refused("there is no sequence of signs in the answer")
        signs = re.sub(r"[ ,]", "", found[-1])
        if len(signs) != self.size:
            raise Refused(f"{len(signs)} signs, where there must be {self.size}")
        return Verified(Fraction(self.size**2, 2 * energy(signs)), signs)

    def score(self, value: Fraction) -> float:
        return min(1.0, float(value) / SCALE)


def energy(signs: str) -> int:
    """Σ_k C_k²; at least 1, as the last shift has one term."""
    values = [1 if sign == "+" else -1 for sign in signs]
    return sum(sum(one * two for one, two in zip(values, values[shift:], strict=False)) ** 2 for shift in range(1, len(values)))
