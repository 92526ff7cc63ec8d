"""The gate: a sequential test on paired differences that may be looked at after every pair. Pure: no clock, no I/O, no randomness.

Each pair gives a difference d = score(candidate) − score(head) in [−1, 1]. Against the hypothesis "the mean of d is at most 0" the gate
bets: a gambler who stakes the share λ of her wealth on "the candidate wins" multiplies it by 1 + λd each pair. Under the hypothesis her
wealth does not grow on average, whatever λ in (0, 1), so by Ville's inequality it *ever* reaches 1/α with probability at most α. The wealth
averaged over a grid of λ has the same property and needs no guess at the effect. Reaching 1/α therefore promotes, at any time, with the
chance of a false promotion bounded by α however often one looks.

The second bet is against "the mean of d is at least δ", the smallest effect worth a release: reaching 1/β rejects, so a candidate whose
effect is δ or more is wrongly rejected with probability at most β. Undecided at the end of the budget is inconclusive.

A chain judges many candidates. The k-th may spend α·6/(π²k²); the shares sum to α, so over the chain's whole life the chance that any
useless candidate is released stays below α.

Sources: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024; Ramdas, Grünwald, Vovk and Shafer,
"Game-theoretic statistics and safe anytime-valid inference", Statistical Science 2023.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from reef.types import Decision

REJECT_LEVEL = 0.1
"""β: the chance that a candidate with an effect of δ or more is rejected all the same. A lost improvement costs less than a bad release."""
INTERVAL_LEVEL = 0.05
"""The reported interval misses the effect with at most this probability, at whatever time the gate stopped."""
GUARDED_PAIRS = 2
"""A protected task must be seen in so many pairs before a promotion, and lose so many before it rejects: one flake is no regression."""

_GRID = tuple((step + 0.5) / 20 for step in range(20))
"""The stakes λ, as shares of the largest allowed."""
_MAX_LOG = 690.0
"""Evidence is capped at e^690, just below the largest float."""


def error_share(alpha: float, *, spent: int) -> float:
    """The error the next candidate may spend, where ``spent`` were judged before it: α·6/(π²k²) for the k-th."""
    return alpha * 6 / (math.pi * (spent + 1)) ** 2


def fewest_pairs(alpha: float) -> int:
    """Pairs after which a candidate that wins every one is promoted. With a smaller budget, judging is a waste."""
    wealth, pairs = Wealth(), 0
    while wealth.value < 1 / alpha:
        wealth.observe(1.0)
        pairs += 1
    return pairs


class Wealth:
    """A bet that the mean of observations in [−``largest_loss``, …] is above 0; its wealth is the evidence against "at most 0".

    Args:
        largest_loss: no observation is below minus this; bounds the stakes, so that wealth never turns negative.
    """

    def __init__(self, *, largest_loss: float = 1.0) -> None:
        self._stakes = tuple(share / largest_loss for share in _GRID)
        self._logs = [0.0] * len(self._stakes)

    def observe(self, value: float, *, times: int = 1) -> float:
        """Take an observation, or several equal ones, and return the wealth after it."""
        self._logs = [log + times * math.log1p(stake * value) for log, stake in zip(self._logs, self._stakes, strict=True)]
        return self.value

    @property
    def value(self) -> float:
        """The average over all stakes."""
        top = max(self._logs)
        return math.exp(min(top + math.log(sum(math.exp(log - top) for log in self._logs) / len(self._logs)), _MAX_LOG))


def interval(differences: Sequence[float], *, level: float = INTERVAL_LEVEL) -> tuple[float, float]:
    """Anytime-valid confidence interval for the mean: the means that a bet at ``level`` / 2 on either side has not refuted by now."""
    low = _lower_bound(differences, level=level / 2)
    high = -_lower_bound([-difference for difference in differences], level=level / 2)
    return low, high


def _lower_bound(differences: Sequence[float], *, level: float) -> float:
    """The smallest mean not refuted by a bet on "larger". The wealth of that bet falls as the mean grows, so halving finds it."""
    low, high = -1.0, 1.0
    counted = Counter(differences)  # the order does not matter to wealth, and scores are often just 0 and 1
    for _ in range(20):
        mean = (low + high) / 2
        wealth = Wealth(largest_loss=1.0 + mean)
        for difference, times in counted.items():
            wealth.observe(difference - mean, times=times)
        if wealth.value >= 1 / level:
            low = mean
        else:
            high = mean
    return low


@dataclass(slots=True)
class _Guarded:
    """What a protected task has shown."""

    pairs: int = 0
    losses: int = 0
    total: float = 0.0


@dataclass(slots=True, kw_only=True)
class Gate:
    """Judges one candidate, pair by pair.

    Example:
        >>> gate = Gate(alpha=0.05, min_effect=0.1)
        >>> while gate.decision is None:
        ...     _ = gate.observe(1.0, task="greeting")
        >>> gate.decision, gate.pairs
        (<Decision.PROMOTE: 'promote'>, 7)
    """

    alpha: float
    """The error this candidate may spend, from :func:`error_share`."""
    min_effect: float
    """δ."""
    protected: frozenset[str] = frozenset()
    """Tasks on which a regression alone rejects."""
    decision: Decision | None = None
    """None while undecided; final once set."""
    reason: str = ""
    differences: list[float] = field(default_factory=list)
    _promotion: Wealth = field(init=False)
    _rejection: Wealth = field(init=False)
    _guarded: dict[str, _Guarded] = field(init=False)
    _best: float = field(init=False, default=1.0)

    def __post_init__(self) -> None:
        self._promotion = Wealth()
        self._rejection = Wealth(largest_loss=1.0 - self.min_effect)
        self._guarded = {task: _Guarded() for task in sorted(self.protected)}

    def observe(self, difference: float, *, task: str) -> Decision | None:
        """Take the next pair's difference and return the decision, if it is one now.

        Raises:
            ValueError: not a number in [−1, 1], or the gate has decided already.
        """
        if not -1.0 <= difference <= 1.0:  # false for NaN too
            raise ValueError(f"a paired difference must lie in [-1, 1], got {difference}")
        if self.decision is not None:
            raise ValueError("the gate has decided; a later pair could only tempt")
        self.differences.append(difference)
        self._best = max(self._best, self._promotion.observe(difference))
        against = self._rejection.observe(self.min_effect - difference)
        self._observe_guard(difference, task)
        regressed = self._regressed()
        if regressed:
            self._decide(Decision.REJECT, f"worse on the protected task {regressed}")
        elif self._best >= 1 / self.alpha and not self.unguarded:
            # wealth that was reached once counts although it may have fallen while a guard was waited for: Ville bounds its maximum
            self._decide(Decision.PROMOTE, f"better: evidence {self._best:.0f} where {1 / self.alpha:.0f} were needed")
        elif against >= 1 / REJECT_LEVEL:
            self._decide(Decision.REJECT, f"no improvement of {self.min_effect:g} or more")
        return self.decision

    def give_up(self, why: str) -> None:
        """End undecided, for a reason outside the statistics: a budget, or an infrastructure that does not work."""
        if self.decision is None:
            waiting = f", and {', '.join(self.unguarded)} (protected) not yet safe" if self._best >= 1 / self.alpha else ""
            needed = f"evidence {self._best:.2g} of {1 / self.alpha:.0f} needed{waiting}"
            self._decide(Decision.INCONCLUSIVE, f"{why}: {needed}")

    @property
    def pairs(self) -> int:
        return len(self.differences)

    @property
    def wins(self) -> int:
        return sum(difference > 0 for difference in self.differences)

    @property
    def losses(self) -> int:
        return sum(difference < 0 for difference in self.differences)

    @property
    def effect(self) -> float:
        """Mean difference; 0 before the first pair."""
        return sum(self.differences) / len(self.differences) if self.differences else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """See :func:`interval`."""
        return interval(self.differences)

    @property
    def evidence(self) -> float:
        """The most wealth the promotion bet has had."""
        return self._best

    @property
    def unguarded(self) -> tuple[str, ...]:
        """Protected tasks that forbid a promotion for now: seen in too few pairs, or behind."""
        return tuple(task for task, seen in self._guarded.items() if seen.pairs < GUARDED_PAIRS or seen.total < 0)

    def _observe_guard(self, difference: float, task: str) -> None:
        seen = self._guarded.get(task)
        if seen is not None:
            seen.pairs += 1
            seen.losses += difference < 0
            seen.total += difference

    def _regressed(self) -> str:
        return next((task for task, seen in self._guarded.items() if seen.losses >= GUARDED_PAIRS and seen.total < 0), "")

    def _decide(self, decision: Decision, why: str) -> None:
        low, high = self.interval
        tally = f"{self.wins} won, {self.losses} lost, {self.pairs - self.wins - self.losses} alike of {self.pairs} pairs"
        self.decision = decision
        self.reason = f"{why[0].upper()}{why[1:]}. {tally}; effect {self.effect:+.2f}, between {low:+.2f} and {high:+.2f}."
