"""The gate's statistic on live reports: is a candidate on canary worse than the head that serves beside it? Pure.

**Pairs.** Nothing is run twice here: each session ran on the head or on the candidate, and somebody may have said how it went. The n-th
pair takes the n-th of these reports that finds a partner, in order of arrival: a report is paired with the newest waiting one of the other
side, or waits. Its difference is score(candidate) − score(head).

**Why that stays valid.** Who meets whom hangs on the order in which the two sides' reports arrive, never on a score. So look at a score
only when it is paired: whatever was paired before, the two scores of the next pair are a fresh draw from either side. Under "the candidate
is no worse" the difference is then at least 0 on average given all that was bet on before, which is all that the bets of
:mod:`reef.evaluation.eprocess` need, however often one looks and whenever one stops. The partner is the *newest* one, and at most
:data:`WAITING` wait, so that both come from the same time: with a share of 0.1 the n-th report of the candidate comes when the head has
nine times as many, and to pair it with the head's n-th would take a better upstream, or an easier week, for a better candidate.

**What has to be true for it.** The scores of one side are alike given the past. A session counts once, by its first report, since what is
said of one session is one draw however often it is said. Where sessions are split (weights, routing), each is drawn by itself. Where
installations are (harnesses), the sessions of one have their user in common: with few installations the test tells their users apart as
well as the releases. That makes a roll-back or a survival less certain; it cannot make a release that the gate did not grant, since a
candidate comes here only after the gate promoted it. Released is what passes both.

**Ends.** Two gamblers decide, each at the share of the chain's error that the gate gave the candidate (:mod:`reef.evaluation.spending`):

* one against "no worse than the head". Her wealth reaching 1/α rolls the candidate back at once: a candidate that is as good is rolled
  back so with a chance of at most α_k, and over a whole chain any with at most α.
* one against "worse by δ or more", with δ the gate's smallest effect. Her wealth reaching 1/α lets it survive, once enough sessions on the
  candidate were reported on: one that is worse by δ survives with a chance of at most α_k. To be found better is not asked again. On the
  same observations "better" is the harder thing to show, so a candidate that shows it has survived by then.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from reef.evaluation.eprocess import TIE, Wealth, interval
from reef.types import Decision, Verdict

WAITING = 16
"""Reports of one side that wait for a partner; an older one is passed over."""
FORMAT = "live-1"
"""Of ``terms``: no verdict of the gate, so it is not computed again as one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LiveTerms:
    """What is to be decided, fixed before the first report."""

    alpha: float
    """The share of the chain's error that the candidate has."""
    min_effect: float
    """δ."""
    min_reports: int
    """Sessions on the candidate that must have been reported on before it survives; a roll-back waits for nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scored:
    """What was said of one session, as it arrived."""

    on_candidate: bool
    score: float


class LiveTest:
    """Judges one candidate, report by report.

    Example:
        >>> test = LiveTest(LiveTerms(alpha=0.05, min_effect=0.1, min_reports=20))
        >>> while test.decision is None:
        ...     test.observe(Scored(on_candidate=False, score=1.0))
        ...     test.observe(Scored(on_candidate=True, score=0.0))
        >>> test.decision, test.pairs
        (<Decision.REJECT: 'reject'>, 7)
    """

    def __init__(self, terms: LiveTerms) -> None:
        self.terms = terms
        self.decision: Decision | None = None
        """None while undecided; final once set."""
        self.why = ""
        self.reports = {"head": 0, "candidate": 0}
        self.differences: list[float] = []
        self._waiting: dict[bool, deque[float]] = {side: deque(maxlen=WAITING) for side in (False, True)}
        self._worse = Wealth(target=1 / terms.alpha)
        self._safe = Wealth(target=1 / terms.alpha, largest_loss=1.0 - terms.min_effect)
        self._better = Wealth(target=1 / terms.alpha)

    def observe(self, report: Scored) -> None:
        """Take the next report; once decided, later ones change nothing. Scores beyond [0, 1] count as its ends."""
        if self.decision is not None:
            return
        if math.isnan(report.score):
            raise ValueError("a score must be a number")
        score, side = min(1.0, max(0.0, report.score)), report.on_candidate
        self.reports["candidate" if side else "head"] += 1
        if others := self._waiting[not side]:
            partner = others.pop()
            self._pair(score - partner if side else partner - score)
        else:
            self._waiting[side].append(score)
        self._decide()

    def verdict(self, *, seconds: float, otherwise: str = "") -> Verdict:
        """Where it came to, or stands.

        Args:
            otherwise: why it ends undecided, where it does.
        """
        low, high = interval(self.differences)
        decision = self.decision or Decision.INCONCLUSIVE
        wins, losses = sum(value > 0 for value in self.differences), sum(value < 0 for value in self.differences)
        tally = f"{wins} won, {losses} lost, {self.pairs - wins - losses} alike of {self.pairs} pairs of live reports"
        why = self.why or f"{otherwise + ': ' if otherwise else ''}evidence {self.progress}"
        terms: dict[str, Any] = {"format": FORMAT, **dataclasses.asdict(self.terms), "reports": dict(self.reports)}
        terms |= {"evidence_worse": self._worse.best, "evidence_not_worse": self._safe.best}
        return Verdict(
            decision,
            f"{why[0].upper()}{why[1:]}. {tally}; effect {self.effect:+.2f}, between {low:+.2f} and {high:+.2f}.",
            effect=self.effect,
            low=low,
            high=high,
            pairs=self.pairs,
            wins=wins,
            losses=losses,
            evidence=self._better.best,
            alpha=self.terms.alpha,
            seconds=seconds,
            terms=terms,
        )

    @property
    def pairs(self) -> int:
        return len(self.differences)

    @property
    def effect(self) -> float:
        """Mean difference; 0 before the first pair."""
        return math.fsum(self.differences) / self.pairs if self.pairs else 0.0

    @property
    def progress(self) -> str:
        """Where it stands, in a few words."""
        needed, got = self.terms.min_reports, self.reports["candidate"]
        waits = f", {got} of {needed} sessions on the candidate reported on" if got < needed else ""
        return f"{self._safe.best:.3g} for not worse and {self._worse.best:.3g} for worse, of {1 / self.terms.alpha:.0f} needed{waits}"

    def _pair(self, difference: float) -> None:
        if abs(difference) < TIE:
            difference = 0.0
        self.differences.append(difference)
        self._worse.observe(-difference)
        self._safe.observe(difference + self.terms.min_effect)
        self._better.observe(difference)

    def _decide(self) -> None:
        if self._worse.reached:
            self.decision, self.why = Decision.REJECT, f"worse than the head: evidence {self._worse.best:.0f}, {self._needed} were needed"
        elif self._safe.reached and self.reports["candidate"] >= self.terms.min_reports:
            better = " and better" if self._better.reached else ""
            why = f"not worse by {self.terms.min_effect:g} or more{better}: evidence {self._safe.best:.0f}, {self._needed} were needed"
            self.decision, self.why = Decision.PROMOTE, why

    @property
    def _needed(self) -> str:
        return f"{1 / self.terms.alpha:.0f}"


def weigh(terms: LiveTerms, reports: Iterable[Scored]) -> LiveTest:
    """The test after all reports, in the order they arrived. The same reports give the same test, so nothing of it needs to be kept."""
    test = LiveTest(terms)
    for report in reports:
        test.observe(report)
    return test
