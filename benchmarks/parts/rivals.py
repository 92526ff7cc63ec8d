"""Other ways to decide from paired differences: each takes a matrix, a stream a row, and says which candidates it would release."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Answers = NDArray[np.bool_]
RESAMPLES = 500


def more_wins(differences: Floats, *, alpha: float) -> Answers:
    """ "It won more often than it lost.\""""
    del alpha
    return (differences > 0).sum(axis=1) > (differences < 0).sum(axis=1)


def sign_test(differences: Floats, *, alpha: float) -> Answers:
    """The exact one-sided sign test over all pairs, looked at once."""
    wins, unequal = (differences > 0).sum(axis=1), (differences != 0).sum(axis=1)
    return wins >= _critical(differences.shape[1], alpha)[unequal]


def peeked_sign_test(differences: Floats, *, alpha: float) -> Answers:
    """The same, looked at after every pair until it likes what it sees: what it is not made for."""
    wins, unequal = (differences > 0).cumsum(axis=1), (differences != 0).cumsum(axis=1)
    return (wins >= _critical(differences.shape[1], alpha)[unequal]).any(axis=1)


def bootstrap(differences: Floats, *, alpha: float) -> Answers:
    """The paired bootstrap: at most a share α of resampled means is not above 0."""
    streams, pairs = differences.shape
    generator = np.random.default_rng(streams * 1_000_003 + pairs)
    below = np.zeros(streams)
    for _ in range(RESAMPLES):
        weights = generator.multinomial(pairs, np.full(pairs, 1 / pairs))  # the same for all streams, which are independent of each other
        below += differences @ weights <= 1e-9
    return below / RESAMPLES <= alpha


def pairs_for(*, won: float, lost: float, alpha: float, power: float = 0.8) -> int:
    """The pairs of the sign test that knows the effect beforehand: the fewest with this power, as won and lost have these chances."""
    unequal = won + lost
    for pairs in range(3, 3000):
        critical = _critical(pairs, alpha)
        found = 0.0
        for rounds in range(pairs + 1):
            weight = _binomial(pairs, rounds, unequal)
            if weight > 1e-12:
                needed = int(critical[rounds])
                found += weight * math.fsum(_binomial(rounds, wins, won / unequal) for wins in range(needed, rounds + 1))
        if found >= power:
            return pairs
    raise ValueError("no number of pairs is enough")


@functools.cache
def _critical(pairs: int, alpha: float) -> NDArray[np.int64]:
    """For each number of unequal pairs: the fewest wins that are too many for chance."""
    return np.array([_fewest(rounds, alpha) for rounds in range(pairs + 1)])


@functools.cache
def _fewest(rounds: int, alpha: float) -> int:
    tail, wins = 0.0, rounds + 1
    while wins > 0 and tail + _binomial(rounds, wins - 1, 0.5) <= alpha:
        wins -= 1
        tail += _binomial(rounds, wins, 0.5)
    return wins


@functools.cache
def _binomial(count: int, wins: int, chance: float) -> float:
    if chance >= 1.0:
        return float(wins == count)
    log = math.lgamma(count + 1) - math.lgamma(wins + 1) - math.lgamma(count - wins + 1)
    return math.exp(log + wins * math.log(chance) + (count - wins) * math.log1p(-chance))
