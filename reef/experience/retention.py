"""How much is kept, and for how long: looks at scenarios with a budget and drops what is beyond it.

What is dropped is the content of whole sessions. First go those nobody waits for: learned from, or made by trials and proposers; then those
that nobody reported on; last those that were reported on and that no recipe has learned from yet. Of each kind the oldest first. What goes
of the last two kinds is said aloud and counted. A session with a request younger than the grace period stays, whatever the budget.

It runs in the learner's process, from a thread: the gateway and its keeper are what must never wait, and nobody waits for the learner.
`reef retention` does the same from a process of its own. Any number may run at once; :mod:`reef.experience.dropping` tells why that is
safe.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
import structlog
import zstandard

from reef.experience import schema, usage
from reef.experience.database import write
from reef.experience.dropping import Dropper
from reef.experience.reserve import Reserve
from reef.experience.survey import Session, Survey
from reef.experience.sweep import sweep

log = structlog.get_logger()

KEEP_PART = 0.9
"""Of a byte budget that was exceeded: down to here, so that it need not be looked into again for each new record."""
AGE_SLACK = 0.01
"""Of an age budget: how much later than it is due something may go, for the same reason."""
MOST_S = 86400.0
"""Between two looks at a scenario with an age budget, whatever is due: old records may have been imported."""
LOOK_FACTOR = 20
"""A look at a scenario is followed by at least so many times its length without one."""
SWEEP_EVERY_S = 3600.0
MOST_SESSIONS = 20_000
"""Dropped by one pass; the next one follows at once."""
COUNTERS = (None, "dropped_unreported", "dropped_waiting")
"""The sum in which each rank is counted."""
_records = schema.records


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a scenario is kept; None is without bound."""

    max_bytes: int | None = None
    max_age_s: float | None = None

    def __bool__(self) -> bool:
        return self.max_bytes is not None or self.max_age_s is not None


@dataclass(frozen=True, slots=True)
class Policy:
    """Which scenario has which budget."""

    default: Budget = Budget()
    scenarios: Mapping[str, Budget] = field(default_factory=dict)
    grace_s: float = 3600.0

    def of(self, scenario: str) -> Budget:
        """The budget of a scenario."""
        return self.scenarios.get(scenario, self.default)


@dataclass(slots=True)
class Outcome:
    """What a look at one scenario found, and what became of it."""

    scenario: str
    bytes: int
    """What its records held before."""
    budget: Budget
    over: bool = False
    """More is to go than is old enough to go."""
    sessions: int = 0
    records: int = 0
    dropped_bytes: int = 0
    unreported: int = 0
    waiting: int = 0
    in_use: int = 0
    """Sessions that came to life again, or were in somebody's hands."""
    unreadable: int = 0
    more: bool = False
    """There is more to drop at once."""


class Retention:
    """Keeps scenarios within their budgets.

    Args:
        engine: the database; its tables exist.
        policy: the budgets.
        wait: waits so many seconds; true if it is time to stop.
    """

    def __init__(self, engine: sa.Engine, policy: Policy, *, wait: Callable[[float], Any] = time.sleep) -> None:
        self._engine = engine
        self._policy = policy
        self._wait = wait
        self._usage = usage.Usage(engine)
        self._expiry: dict[str, float] = {}
        """By scenario, when the oldest that stayed is due."""
        self._rest_until: dict[str, float] = {}
        self._over: set[str] = set()
        self._swept_at = 0.0

    def run(self) -> list[Outcome]:
        """Count what is new, and look at scenarios that seem to be beyond their budget.

        Raises:
            StorageError: the database does not take it.
        """
        self._count()
        now = time.time()
        found = [self.look(scenario) for scenario in self._scenarios() if self._is_due(scenario, now)]
        if self._policy.default or any(self._policy.scenarios.values()):
            self._hold_reserve()
        if now - self._swept_at > SWEEP_EVERY_S:
            self._swept_at = now
            self.sweep()
        return found

    def run_all(self, *, dry: bool = False) -> list[Outcome]:
        """Look at every scenario with a budget, now, until nothing more can go.

        Args:
            dry: drop nothing; the outcomes say what would go.
        """
        if not dry:
            self._count()
        found = []
        for scenario in self._scenarios():
            if self._policy.of(scenario):
                while (outcome := self.look(scenario, dry=dry)).more and not dry:
                    found.append(outcome)
                found.append(outcome)
        return found

    def sweep(self) -> int:
        """Collect blobs that nothing uses any more; how many."""
        collected = sweep(self._engine, wait=self._wait)
        if collected:
            log.info("unused blobs collected", blobs=collected)
        return collected

    def look(self, scenario: str, *, dry: bool = False) -> Outcome:
        """See what a scenario holds, and drop what is beyond its budget."""
        began = time.time()
        budget = self._policy.of(scenario)
        expired_before = float("-inf") if budget.max_age_s is None else began - budget.max_age_s
        idle_since = began - self._policy.grace_s
        survey = Survey(self._engine, scenario, expired_before=expired_before, idle_since=idle_since)
        sessions = heapq.nsmallest(MOST_SESSIONS, survey.idle_sessions(wait=self._wait))
        outcome = Outcome(scenario, survey.bytes, budget)
        excess = 0.0
        if budget.max_bytes is not None and survey.bytes > budget.max_bytes:
            excess = survey.bytes - KEEP_PART * budget.max_bytes
        chosen = _choose(sessions, excess)
        outcome.over = sum(session.bytes for session in chosen) < excess
        if dry:
            for session in chosen:
                _tell(outcome, session, records=session.records, size=session.bytes)
        elif survey.complete:  # else it was time to stop
            self._drop(outcome, chosen, before=idle_since)
            self._correct(survey, outcome)
            outcome.more = len(chosen) == MOST_SESSIONS and outcome.records > 0
            self._log(outcome)
            self._plan_next(outcome, oldest=survey.oldest, began=began)
        return outcome

    def _plan_next(self, outcome: Outcome, *, oldest: float | None, began: float) -> None:
        age = outcome.budget.max_age_s
        if age is not None:
            oldest = began if oldest is None else oldest
            self._expiry[outcome.scenario] = min(max(oldest, began - (1 - AGE_SLACK) * age) + age, began + MOST_S)
        self._rest_until[outcome.scenario] = 0.0 if outcome.more else time.time() + LOOK_FACTOR * (time.time() - began)

    def _drop(self, outcome: Outcome, chosen: list[Session], *, before: float) -> None:
        if not chosen:
            return
        with Dropper(self._engine, wait=self._wait) as dropper:
            for session in chosen:
                try:
                    done = dropper.drop(outcome.scenario, session.name, before=before, counter=COUNTERS[session.rank])
                except (LookupError, ValueError, zstandard.ZstdError) as error:  # damaged: it stays for whoever wants to look
                    outcome.unreadable += 1
                    log.error("a session cannot be read and stays", scenario=outcome.scenario, session=session.name, reason=str(error))
                    continue
                _tell(outcome, session, records=done.records, size=done.bytes)
                outcome.in_use += not done.whole
                if self._wait(0):
                    return

    def _log(self, outcome: Outcome) -> None:
        told = {"scenario": outcome.scenario, "records": outcome.records, "bytes": outcome.dropped_bytes, "sessions": outcome.sessions}
        if outcome.unreported or outcome.waiting:
            log.warning("dropped what nothing was learned from", waiting=outcome.waiting, unreported=outcome.unreported, **told)
        elif outcome.records:
            log.info("dropped", **told)
        if outcome.over and outcome.scenario not in self._over:  # once, not with every look
            log.warning("a scenario is over its budget with records too young to go", scenario=outcome.scenario, bytes=outcome.bytes)
        (self._over.add if outcome.over else self._over.discard)(outcome.scenario)

    def _scenarios(self) -> Iterator[str]:
        """Those with records. One look into an index for each, however much there is."""
        last: str | None = ""
        while last is not None:
            with self._engine.connect() as tx:
                last = tx.execute(sa.select(sa.func.min(_records.c.scenario)).where(_records.c.scenario > last)).scalar()
            if last is not None:
                yield last

    def _is_due(self, scenario: str, now: float) -> bool:
        budget = self._policy.of(scenario)
        if not budget or now < self._rest_until.get(scenario, 0.0):
            return False
        if budget.max_age_s is not None and now >= self._expiry.get(scenario, 0.0):
            return True
        held = usage.sums(self._engine).get(scenario, {"bytes": 0})["bytes"]
        return budget.max_bytes is not None and held > budget.max_bytes

    def _hold_reserve(self) -> None:
        try:
            Reserve(self._engine).hold()
        except OSError as error:
            log.warning("no room could be set aside for a full disk", reason=str(error))

    def _count(self) -> None:
        try:
            self._usage.look()
        except sa.exc.OperationalError as error:  # on a full disk sums do not matter: what follows makes room
            log.warning("the records of each scenario could not be counted", reason=str(error.orig))

    def _correct(self, survey: Survey, outcome: Outcome) -> None:
        """Put the sums of a scenario right; after what needed no more room than there was."""
        exact = {"records": survey.counted_records - outcome.records, "bytes": survey.counted_bytes - outcome.dropped_bytes}
        with write(self._engine).begin() as tx:
            usage.lock(tx)
            if usage.counted_to(tx) == survey.counted_to:
                tx.execute(schema.retention.update().where(schema.retention.c.scenario == survey.scenario).values(**exact))


def _choose(sessions: list[Session], excess: float) -> list[Session]:
    """What is too old, and of the rest as many as are needed for the excess to be gone."""
    chosen = []
    for session in sessions:
        if session.unexpired and excess <= 0:
            break
        chosen.append(session)
        excess -= session.bytes
    return chosen


def _tell(outcome: Outcome, session: Session, *, records: int, size: int) -> None:
    outcome.sessions += records > 0
    outcome.records += records
    outcome.dropped_bytes += size
    if session.rank == 1:
        outcome.unreported += records
    elif session.rank == 2:
        outcome.waiting += records
