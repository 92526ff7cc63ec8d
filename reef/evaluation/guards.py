"""What a better mean may not be bought with: a regression on protected tasks, or a price. Guards only ever refuse; they prove nothing,
and so need no share of the chain's error.

**Protected groups.** A group is a protected task by itself, or all tasks with a tag that ``evaluation.protect`` names. A promotion needs
each group to have been seen in a few pairs and not to be behind over them. A group that has lost twice and never won, or against which a
bet on "worse" has come to 1/:data:`HARM_LEVEL`, rejects the candidate whatever its mean: one flake is no regression, and what is only
unlucky catches up while the gate waits.

**Price.** What the candidate's pairs cost beside the head's, in money where prices are configured and in tokens where not, and how long
they took, at most so many times as much. Only pairs of which both sides ran count here: a remembered run was fast or slow on another day.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from reef.evaluation.eprocess import TIE, Wealth

GUARDED_PAIRS = 2
"""A protected group must be seen in so many pairs before a promotion, and lose so many before it rejects."""
HARM_LEVEL = 0.1
"""The chance that a group which is no worse rejects a candidate all the same, by a bet on "worse"."""


@dataclass(slots=True)
class _Group:
    """What a protected group has shown."""

    harm: Wealth = field(default_factory=lambda: Wealth(target=1 / HARM_LEVEL))
    pairs: int = 0
    wins: int = 0
    losses: int = 0
    total: float = 0.0

    @property
    def waiting(self) -> bool:
        return self.pairs < GUARDED_PAIRS or self.total < -TIE

    @property
    def regressed(self) -> bool:
        return self.total < -TIE and (self.harm.reached or (self.losses >= GUARDED_PAIRS and not self.wins))


class Guards:
    """Watches protected groups.

    Args:
        groups: the tasks of each group, by its name.
    """

    def __init__(self, groups: Mapping[str, Iterable[str]]) -> None:
        self._groups = {name: _Group() for name in sorted(groups)}
        self._of: dict[str, list[str]] = {}
        for name in sorted(groups):
            for task in groups[name]:
                self._of.setdefault(task, []).append(name)

    def observe(self, difference: float, *, task: str) -> None:
        """Take a pair."""
        for name in self._of.get(task, ()):
            group = self._groups[name]
            group.harm.observe(-difference)
            group.pairs += 1
            group.wins += difference > 0
            group.losses += difference < 0
            group.total += difference

    @property
    def waiting(self) -> tuple[str, ...]:
        """Groups that forbid a promotion for now: seen in too few pairs, or behind."""
        return tuple(name for name, group in self._groups.items() if group.waiting)

    @property
    def regressed(self) -> str:
        """A group that rejects the candidate; empty where none does."""
        return next((name for name, group in self._groups.items() if group.regressed), "")


@dataclass(frozen=True, slots=True)
class Price:
    """What the two sides of a pair took."""

    candidate: float
    head: float


class PriceGuard:
    """Adds up what the two sides took, and says when the candidate took too much.

    Args:
        what: ``cost`` or ``latency``, for the message.
        most: how many times the head's the candidate's may be; None: anything.
    """

    def __init__(self, what: str, *, most: float | None) -> None:
        self._what = what
        self._most = most
        self._candidate: list[float] = []
        self._head: list[float] = []

    def observe(self, price: Price) -> None:
        """Take a pair."""
        self._candidate.append(price.candidate)
        self._head.append(price.head)

    @property
    def objection(self) -> str:
        """Why not to promote; empty where there is no reason."""
        if self._most is None:
            return ""
        candidate, head = math.fsum(self._candidate), math.fsum(self._head)
        if candidate <= self._most * head and head > 0:
            return ""
        if head <= 0:
            return f"its {self._what} beside the head's is not known, and a bound on it is set"
        return f"its {self._what} is {candidate / head:.2f} times the head's, where {self._most:g} times are allowed"
