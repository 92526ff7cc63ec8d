"""Streams of paired differences, and the gate over thousands of them at once.

:func:`gate` is :class:`reef.evaluation.gate.Gate` for a matrix of streams, with its own constants: a test holds the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reef.evaluation.eprocess import GRID, MARGIN
from reef.evaluation.gate import REJECT_LEVEL

Floats = NDArray[np.float64]
KINDS = ("binary", "graded", "skewed", "tied")
BASE = 0.5
_STAKES = np.array(GRID)


def draw(kind: str, *, effect: float, streams: int, pairs: int, generator: np.random.Generator) -> Floats:
    """Differences candidate − head with the mean ``effect``, a stream a row.

    binary: each side solves a task or does not, the head half of them. graded: scores between 0 and 1. skewed: mostly a little better,
    now and then much worse. tied: nine of ten pairs alike.
    """
    shape = (streams, pairs)
    if kind == "binary":
        return (generator.random(shape) < BASE + effect).astype(float) - (generator.random(shape) < BASE)
    if kind == "graded":
        mean = BASE + effect
        return generator.beta(4 * mean, 4 * (1 - mean), shape) - generator.beta(2, 2, shape)
    if kind == "skewed":
        return np.where(generator.random(shape) < (1 + effect) / 1.1, 0.1, -1.0)
    if kind == "tied":
        chance = generator.random(shape)
        return np.where(chance < 0.05 + effect / 2, 1.0, np.where(chance > 0.95 + effect / 2, -1.0, 0.0))
    raise ValueError(kind)


@dataclass
class _Bets:
    """:class:`reef.evaluation.eprocess.Wealth`, a row for each stream."""

    target: float
    stakes: Floats
    value: Floats
    parts: Floats
    smallest_win: Floats

    @classmethod
    def begin(cls, streams: int, *, target: float, largest_loss: float = 1.0) -> _Bets:
        stakes = _STAKES / largest_loss
        return cls(target, stakes, np.ones(streams), np.ones((streams, len(stakes))), np.full(streams, np.inf))

    def observe(self, x: Floats) -> NDArray[np.bool_]:
        """Take a number for each stream and say which have reached the target."""
        stake = self.parts @ self.stakes / self.parts.sum(axis=1)
        with np.errstate(invalid="ignore"):
            enough = (self.target * MARGIN / self.value - 1.0) / self.smallest_win
        stake = np.where(np.isfinite(self.smallest_win), np.minimum(stake, enough), stake)
        self.value = self.value * (1.0 + stake * x)
        self.parts *= 1.0 + self.stakes * x[:, None]
        self.smallest_win = np.where(x > 0, np.minimum(self.smallest_win, x), self.smallest_win)
        return self.value >= self.target

    def keep(self, going: NDArray[np.bool_]) -> None:
        """Go on with some of the streams."""
        self.value, self.parts, self.smallest_win = self.value[going], self.parts[going], self.smallest_win[going]


@dataclass(frozen=True)
class Judged:
    """What became of each stream."""

    promoted: NDArray[np.bool_]
    rejected: NDArray[np.bool_]
    pairs: NDArray[np.int64]
    """Seen before the decision, or all."""


def gate(differences: Floats, *, alpha: float, min_effect: float) -> Judged:
    """Judge every stream, one stage, to its decision or its end."""
    streams, budget = differences.shape
    promoted, rejected = np.zeros(streams, bool), np.zeros(streams, bool)
    pairs = np.full(streams, budget)
    going = np.arange(streams)
    better = _Bets.begin(streams, target=1 / alpha)
    worse = _Bets.begin(streams, target=1 / REJECT_LEVEL, largest_loss=1.0 - min_effect)
    for number in range(budget):
        seen = differences[going, number]
        up = better.observe(seen)
        down = worse.observe(min_effect - seen) & ~up
        ended = up | down
        if ended.any():
            promoted[going[up]], rejected[going[down]], pairs[going[ended]] = True, True, number + 1
            going = going[~ended]
            better.keep(~ended)
            worse.keep(~ended)
            if not len(going):
                break
    return Judged(promoted, rejected, pairs)
