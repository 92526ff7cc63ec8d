"""The gate: sequential tests on paired differences that may be looked at after every pair. Pure: no clock, no I/O, no randomness.

Each pair gives a difference d = score(candidate) − score(head) in [−1, 1]. Two gamblers (:mod:`reef.evaluation.eprocess`) bet on them:

* one against "the mean of d is at most 0". Her wealth reaching 1/α promotes: the chance that a useless candidate ever gets so far is
  at most α, however often one looks;
* one against "the mean of d is at least δ", the smallest effect worth a release. Her wealth reaching 1/β rejects: a candidate whose
  effect is δ or more is lost so with a chance of at most β.

Undecided at the end of the budget is inconclusive. α is this candidate's share of the chain's error (:mod:`reef.evaluation.spending`).

**Stages.** Without held-out tasks there is one, *confirm*, on all tasks. With them, *screen* comes before it, on the search tasks: a mild
test that spares the held-out tasks and the budget what is not even better there. *Confirm* is then on held-out tasks alone, which no
proposer saw, and starts from nothing: what is promoted is better where nothing could be fitted to it, and the chance of a false promotion
is bounded by α whatever the screen let through. So the screen itself need not be valid for the promise to hold, and may use remembered runs
of the head; *confirm* never does (:mod:`reef.evaluation.evaluator` says why). *Guard* follows a confirmation where protected tasks were
not seen enough, on those alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from reef.evaluation.eprocess import TIE, Wealth, interval
from reef.evaluation.guards import Guards, Price, PriceGuard
from reef.evaluation.spending import error_share
from reef.types import Decision

REJECT_LEVEL = 0.1
"""β: the chance that a candidate with an effect of δ or more is rejected all the same, by all stages together. A lost improvement costs
less than a bad release."""
SCREEN_LEVEL = 0.2
"""The chance that a candidate which is useless on the search tasks goes on to the held-out ones. It only costs pairs."""


class Stage(StrEnum):
    """What a pair is for."""

    SCREEN = "screen"
    CONFIRM = "confirm"
    GUARD = "guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is to be decided and how, fixed before the first pair. Kept with the verdict."""

    alpha: float
    """The error of the whole chain."""
    spent: int = 0
    """Candidates of the chain judged before."""
    min_effect: float
    """δ."""
    max_pairs: int
    screened: bool = False
    """Whether there are held-out tasks to confirm on, and so a screen before."""
    protected: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The tasks of each protected group."""
    max_cost_ratio: float | None = None
    max_latency_ratio: float | None = None
    measure: bool = False
    """Only take pairs until the budget ends, and decide nothing: for a figure, not for a release."""

    @property
    def share(self) -> float:
        """The error this candidate may spend."""
        return error_share(self.alpha, spent=self.spent)

    @property
    def reject_level(self) -> float:
        """The part of β for each stage."""
        return REJECT_LEVEL / 2 if self.screened else REJECT_LEVEL


@dataclass(slots=True)
class _Test:
    """The two bets of a stage and what they saw."""

    promotion: Wealth
    rejection: Wealth
    min_effect: float
    differences: list[float] = field(default_factory=list)

    @classmethod
    def at(cls, level: float, terms: Terms) -> _Test:
        rejection = Wealth(target=1 / terms.reject_level, largest_loss=1.0 - terms.min_effect)
        return cls(Wealth(target=1 / level), rejection, terms.min_effect)

    def observe(self, difference: float) -> None:
        self.differences.append(difference)
        self.promotion.observe(difference)
        self.rejection.observe(self.min_effect - difference)


class Gate:
    """Judges one candidate, pair by pair.

    Example:
        >>> gate = Gate(Terms(alpha=0.05, min_effect=0.1, max_pairs=60))
        >>> while gate.decision is None:
        ...     gate.observe(1.0, task="greeting")
        >>> gate.decision, gate.pairs
        (<Decision.PROMOTE: 'promote'>, 7)
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.stage = Stage.SCREEN if terms.screened else Stage.CONFIRM
        """What the next pair is for."""
        self.decision: Decision | None = None
        """None while undecided; final once set."""
        self.reason = ""
        self._tests = {Stage.SCREEN: _Test.at(SCREEN_LEVEL, terms), Stage.CONFIRM: _Test.at(terms.share, terms)}
        self._seen = dict.fromkeys(Stage, 0)
        self._guards = Guards(terms.protected)
        self._prices = (PriceGuard("cost", most=terms.max_cost_ratio), PriceGuard("latency", most=terms.max_latency_ratio))

    def observe(self, difference: float, *, task: str, cost: Price | None = None, latency: Price | None = None) -> None:
        """Take the next pair's difference; :attr:`decision` and :attr:`stage` say what follows.

        Args:
            cost, latency: what the two sides took, where both ran for this pair.

        Raises:
            ValueError: not a number in [−1, 1], or the gate has decided already.
        """
        if not -1.0 <= difference <= 1.0:  # false for NaN too
            raise ValueError(f"a paired difference must lie in [-1, 1], got {difference}")
        if self.decision is not None:
            raise ValueError("the gate has decided; a later pair could only tempt")
        if abs(difference) < TIE:
            difference = 0.0
        self._seen[self.stage] += 1
        self._guards.observe(difference, task=task)
        for guard, price in zip(self._prices, (cost, latency), strict=True):
            if price is not None:
                guard.observe(price)
        test = self._tests.get(self.stage)
        if test is not None:
            test.observe(difference)
        if not self.terms.measure:
            self._look(test)

    def _look(self, test: _Test | None) -> None:
        """Decide, or go on to another stage, where the pairs so far are enough for it."""
        if self._guards.regressed:
            self._decide(Decision.REJECT, f"worse on the protected {self._guards.regressed}")
        elif test is None or test.promotion.reached:
            self._go_on()
        elif test.rejection.reached:
            where = " on the search tasks" if self.stage is Stage.SCREEN else ""
            self._decide(Decision.REJECT, f"no improvement of {self.terms.min_effect:g} or more{where}")

    def give_up(self, why: str) -> None:
        """End undecided, for a reason outside the statistics: a budget, or an infrastructure that does not work."""
        if self.decision is not None:
            return
        if self.terms.measure:
            found = "measured, and nothing decided"
        elif self.stage is Stage.GUARD:
            found = f"better, but the protected {', '.join(self.unguarded)} not yet safe"
        else:
            promotion = self._tests[self.stage].promotion
            found = f"evidence {promotion.best:.2g} of {promotion.target:.0f} needed" + (
                " on the search tasks" if self.stage is Stage.SCREEN else ""
            )
        self._decide(Decision.INCONCLUSIVE, f"{why}: {found}")

    @property
    def shown(self) -> Stage:
        """The stage whose pairs the figures below are of: the screen's until the confirmation has begun."""
        return Stage.CONFIRM if self._seen[Stage.CONFIRM] or not self.terms.screened else Stage.SCREEN

    @property
    def differences(self) -> list[float]:
        return self._tests[self.shown].differences

    @property
    def pairs(self) -> int:
        return len(self.differences)

    @property
    def all_pairs(self) -> int:
        """Of all stages: what the budget is spent on."""
        return sum(self._seen.values())

    @property
    def wins(self) -> int:
        return sum(difference > 0 for difference in self.differences)

    @property
    def losses(self) -> int:
        return sum(difference < 0 for difference in self.differences)

    @property
    def effect(self) -> float:
        """Mean difference; 0 before the first pair."""
        return math.fsum(self.differences) / self.pairs if self.pairs else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """See :func:`reef.evaluation.eprocess.interval`."""
        return interval(self.differences)

    @property
    def evidence(self) -> float:
        """The most wealth the promotion bet of the confirmation has had."""
        return self._tests[Stage.CONFIRM].promotion.best

    @property
    def unguarded(self) -> tuple[str, ...]:
        """Protected groups that forbid a promotion for now."""
        return self._guards.waiting

    @property
    def progress(self) -> str:
        """Where it stands, in a few words."""
        if self.stage is Stage.GUARD:
            return f"better; watching the protected {', '.join(self.unguarded)}"
        promotion = self._tests[self.stage].promotion
        return f"{'screening, ' if self.stage is Stage.SCREEN else ''}evidence {promotion.best:.3g} of {promotion.target:.0f}"

    def _go_on(self) -> None:
        """A stage was passed."""
        if self.stage is Stage.SCREEN:
            self.stage = Stage.CONFIRM
        elif self._guards.waiting:
            self.stage = Stage.GUARD
        elif objection := next((guard.objection for guard in self._prices if guard.objection), ""):
            self._decide(Decision.REJECT, f"better, but {objection}")
        else:
            self._decide(Decision.PROMOTE, f"better: evidence {self.evidence:.0f} where {1 / self.terms.share:.0f} were needed")

    def _decide(self, decision: Decision, why: str) -> None:
        low, high = self.interval
        tally = f"{self.wins} won, {self.losses} lost, {self.pairs - self.wins - self.losses} alike of {self.pairs} pairs"
        screened = self._seen[Stage.SCREEN]
        after = f" after {screened} pairs of screening" if self.shown is Stage.CONFIRM and screened else ""
        self.decision = decision
        self.reason = f"{why[0].upper()}{why[1:]}. {tally}{after}; effect {self.effect:+.2f}, between {low:+.2f} and {high:+.2f}."


def terms_from(stored: Mapping[str, Any]) -> Terms:
    """Terms as they were kept with a verdict."""
    names = Terms.__dataclass_fields__
    fields = {name: value for name, value in stored.items() if name in names}
    return Terms(**{**fields, "protected": {name: tuple(tasks) for name, tasks in fields["protected"].items()}})
