"""Whether a series grows: the slope of a line through it, with an interval that allows for samples being alike from one to the next."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MOST_ALIKE = 0.98
"""Bound on the correlation of neighbours; nearer to 1 the interval would have no end."""
FEWEST = 4.0
"""What any series counts for at least."""


@dataclass(frozen=True)
class Trend:
    """A slope and its 95 % confidence interval, in units of y per unit of x."""

    slope: float
    low: float
    high: float

    @property
    def grows(self) -> bool:
        """Whether all of the interval is above zero."""
        return self.low > 0


def fit(x: Sequence[float], y: Sequence[float]) -> Trend:
    """Least squares. Memory moves in steps, so samples next to each other tell the same thing twice: n samples whose residuals correlate
    with their neighbours by r count as n(1 − r)/(1 + r)."""
    n = len(x)
    if n < 4 or len(set(x)) < 2:
        return Trend(math.nan, -math.inf, math.inf)
    slope, intercept = statistics.linear_regression(x, y)
    residuals = [b - (intercept + slope * a) for a, b in zip(x, y, strict=True)]
    squares = sum(residual**2 for residual in residuals)
    if squares <= 1e-12 * max(1.0, sum(value**2 for value in y)):  # a straight line
        return Trend(slope, slope, slope)
    alike = sum(a * b for a, b in itertools.pairwise(residuals)) / squares
    alike = min(max(alike, 0.0), MOST_ALIKE)
    worth = max(n * (1 - alike) / (1 + alike), FEWEST)
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    error = math.sqrt(squares / spread / (worth - 2))
    reach = _student(worth - 2) * error
    return Trend(slope, slope - reach, slope + reach)


def _student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, by its expansion around the normal's (Abramowitz and Stegun 26.7.5)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))
