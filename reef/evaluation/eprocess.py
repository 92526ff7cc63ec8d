"""Betting on the mean of bounded numbers: the evidence the gate weighs, and the interval it reports. Pure, and the same to the last bit
on every machine and Python.

**The bet.** Against the hypothesis "the mean of x is at most 0" a gambler stakes the share λ of her wealth on every x: it is multiplied by
1 + λx, which is never negative as long as λ times the largest loss is below 1. Under the hypothesis her wealth does not grow on average,
whatever she stakes, as long as she stakes before she sees: it is a *test supermartingale*, and by Ville's inequality it ever reaches 1/α
with probability at most α. So one may look after each x and stop when one likes.

**The stakes.** Her wealth is shared out among a grid of λ, which is the same as staking the mean of the grid weighted by what each has won
so far: she learns the effect while she bets, and only unequal pairs move her (a tie multiplies by 1). The grid begins at an eighth, since
smaller stakes win nothing within a budget anyone has, and takes from those that do.

**No more than is needed.** When the smallest win seen so far would carry her beyond 1/α, she stakes only what just reaches it: the
overshoot would be worth nothing and a loss costs less. The stake still depends on the past alone, so the test stays valid; on scores of 0
and 1 it saves 5 % of the pairs. Taking the *smallest* win keeps scores with many grades from creeping up on the bound for ever.

**The same bits.** Only sums, products and quotients of doubles, which IEEE 754 fixes, and :func:`math.fsum`: logarithms and powers differ
between C libraries, and ``sum`` between versions of Python.

Sources: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86 (2024): the bets, the mixture over a
grid, the interval; Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference", Statistical Science 38
(2023); Fischer and Ramdas, "Improving Wald's (approximate) sequential probability ratio test by avoiding overshoot" (2024): the cap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

INTERVAL_LEVEL = 0.1
"""The reported interval misses the effect with at most this probability, half of it on either side, at whatever time the gate stopped. What
is promoted needs stronger evidence than either side, so its interval lies above 0."""
GRID = tuple((step + 0.5) / 20 for step in range(2, 20))
"""The stakes λ, as shares of the largest allowed; each begins with the same part of the wealth."""
TIE = 1e-9
"""Scores closer than this are equal: 0.3 against 0.1 + 0.2 is no loss, and on a protected task must not be a regression."""
MARGIN = 1 + 1e-12
"""A capped stake aims so far beyond its target, that rounding does not leave it a hair below."""
_HALVINGS = 20
_LARGE, _STEP = 2.0**500, 2.0**-500


class Wealth:
    """A bet that the mean of observations is above 0; its wealth is the evidence against "at most 0".

    Args:
        target: the wealth that decides, 1/α.
        largest_loss: no observation is below minus this; bounds the stakes, so that wealth never turns negative.
    """

    def __init__(self, *, target: float, largest_loss: float = 1.0) -> None:
        self.target = target
        self.value = 1.0
        """The wealth now."""
        self.best = 1.0
        """The most it has been: Ville bounds the maximum, so what was reached once counts although it fell again."""
        self._stakes = tuple(share / largest_loss for share in GRID)
        self._parts = [1.0] * len(GRID)
        self._smallest_win = math.inf

    @property
    def reached(self) -> bool:
        """Whether the hypothesis is refuted."""
        return self.best >= self.target

    def observe(self, x: float) -> float:
        """Take an observation and return the wealth after it."""
        self.value *= 1.0 + self.stake * x
        self.best = max(self.best, self.value)
        self._parts = [part * (1.0 + stake * x) for part, stake in zip(self._parts, self._stakes, strict=True)]
        if x > 0:
            self._smallest_win = min(self._smallest_win, x)
        return self.value

    @property
    def stake(self) -> float:
        """What is staked on the next observation."""
        whole = math.fsum(self._parts)
        if not 0.0 < whole < math.inf:  # everything was lost, or won beyond what a float holds: nothing is left to learn from
            return self._stakes[0]
        mean = math.fsum(part * stake for part, stake in zip(self._parts, self._stakes, strict=True)) / whole
        if self._smallest_win == math.inf or self.value <= 0.0:
            return mean
        enough = (self.target * MARGIN / self.value - 1.0) / self._smallest_win
        return min(mean, enough) if enough > 0.0 else self._stakes[0]


def interval(differences: Sequence[float], *, level: float = INTERVAL_LEVEL) -> tuple[float, float]:
    """Anytime-valid confidence interval for the mean: the means that a bet at ``level`` / 2 on either side has not refuted by now."""
    low = _lower_bound(differences, level=level / 2)
    high = -_lower_bound([-difference for difference in differences], level=level / 2)
    return low, high


def _lower_bound(differences: Sequence[float], *, level: float) -> float:
    """The smallest mean not refuted by a bet on "larger". The wealth of that bet falls as the mean grows, so halving finds it."""
    low, high = -1.0, 1.0
    counted = sorted(Counter(differences).items())  # the order does not matter to wealth, and scores are often just 0 and 1
    for _ in range(_HALVINGS):
        mean = (low + high) / 2
        parts = [_grown(counted, mean=mean, stake=share / (1.0 + mean)) for share in GRID]
        highest = max(shift for _part, shift in parts)
        wealth = math.fsum(part if shift == highest else 0.0 for part, shift in parts) / len(parts)
        for _ in range(max(0, highest)):
            wealth *= _LARGE
        if highest >= 0 and wealth >= 1 / level:
            low = mean
        else:
            high = mean
    return low


def _grown(counted: Sequence[tuple[float, int]], *, mean: float, stake: float) -> tuple[float, int]:
    """What 1 has become with one stake, as a number and how many times 2^500 it is to be taken."""
    wealth, shift = 1.0, 0
    for value, times in counted:
        factor = 1.0 + stake * (value - mean)
        for _ in range(times):
            wealth *= factor
            if wealth > _LARGE:
                wealth, shift = wealth * _STEP, shift + 1
            elif wealth < _STEP:
                wealth, shift = wealth * _LARGE, shift - 1
    return wealth, shift
