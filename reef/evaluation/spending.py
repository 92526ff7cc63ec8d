"""How a chain's error is shared out among its candidates, and what a share and a budget can see. Pure."""

from __future__ import annotations

import functools
import itertools
import math

from reef.evaluation.eprocess import GRID, Wealth

POWER = 0.8
"""An effect counts as within reach where the gate would promote it with this probability."""
_MOST_ROUNDS = 1000
_HALVINGS = 16


def error_share(alpha: float, *, spent: int) -> float:
    """The error the next candidate may spend, where ``spent`` were judged before it: α·6/(π²k²) for the k-th.

    The shares of all k sum to α. So over the whole life of a chain the chance that any useless candidate is released stays below α, however
    many are tried. ``spent`` comes from the database (:meth:`reef.releases.store.ReleaseStore.spent`): neither a restart nor
    judging that was broken off midway gives error back.
    """
    return alpha * 6 / (math.pi * (spent + 1)) ** 2


@functools.cache
def fewest_pairs(alpha: float) -> int:
    """Pairs after which a candidate that wins every one is promoted. With a smaller budget, judging is a waste."""
    wealth = Wealth(target=1 / alpha)
    for pairs in itertools.count(1):
        wealth.observe(1.0)
        if wealth.reached:
            return pairs
    raise AssertionError("unreachable")


def smallest_effect(alpha: float, *, pairs: int, unequal: float, size: float) -> float | None:
    """The smallest effect that ``pairs`` pairs would have promoted with probability :data:`POWER`; None where no effect would do.

    Exact for scores of 0 and 1, where a pair is won, lost or alike. For others it takes every unequal pair to differ by ``size``, which is
    close enough for what it is for: to tell "there is nothing" from "the budget was too small to see it".

    Args:
        unequal: the share of pairs that are not alike, in (0, 1].
        size: by how much those differ, in (0, 1].
    """
    rounds = int(pairs * unequal)
    reach = min(rounds, _MOST_ROUNDS)
    needed = _wins_needed(alpha, reach, size)
    if reach < 1 or needed[-1] > reach:
        return None
    low, high = 0.5, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _promoted(needed, middle) >= POWER else (middle, high)
    effect = unequal * size * (2 * high - 1)
    return effect * math.sqrt(reach / rounds) if rounds > reach else effect  # beyond, it shrinks as the standard error does


@functools.lru_cache(maxsize=64)
def _wins_needed(alpha: float, rounds: int, size: float) -> tuple[int, ...]:
    """After 0, 1, 2 … unequal pairs: how many of them must have been won for wealth 1/α. Larger than there are where none would do."""
    needed, wins = [1], 0
    won, lost = [1.0] * len(GRID), [1.0] * len(GRID)  # each stake's wealth after `wins` wins, and after `losses` losses
    losses = 0
    for played in range(1, rounds + 1):
        losses += 1
        lost = [part * (1.0 - stake * size) for part, stake in zip(lost, GRID, strict=True)]
        while losses >= 0 and math.fsum(a * b for a, b in zip(won, lost, strict=True)) < len(GRID) / alpha:
            wins, losses = wins + 1, losses - 1
            won = [part * (1.0 + stake * size) for part, stake in zip(won, GRID, strict=True)]
            lost = [part / (1.0 - stake * size) for part, stake in zip(lost, GRID, strict=True)]
        needed.append(wins)
        if losses < 0:  # one win more than there are pairs: step back to where all were won
            wins, losses = wins - 1, 0
            won = [part / (1.0 + stake * size) for part, stake in zip(won, GRID, strict=True)]
            lost = [1.0] * len(GRID)
        assert wins + losses == played
    return tuple(needed)


def _promoted(needed: tuple[int, ...], chance: float) -> float:
    """How likely wins, each with this chance, reach what is needed at some time."""
    alive, promoted = {0: 1.0}, 0.0  # by wins so far
    for wins_needed in needed[1:]:
        after: dict[int, float] = {}
        for wins, weight in alive.items():
            for now, part in ((wins, weight * (1 - chance)), (wins + 1, weight * chance)):
                if now >= wins_needed:
                    promoted += part
                elif part > 1e-12:
                    after[now] = after.get(now, 0.0) + part
        alive = after
    return promoted
