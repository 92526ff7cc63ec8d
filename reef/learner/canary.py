"""Judges canaries by what is reported on them, from a thread of the learner's process: the loop may be at trials for half an hour, and a
candidate that does harm is to be gone at once.

It keeps nothing that it may not lose. What a canary is and since when is in the database, where it stands follows from the log of reports,
and its end is one transaction; so a learner that was killed goes on as if nothing had been.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog

from reef import process
from reef.errors import Conflict, ReefError, StaleHead
from reef.experience.schema import reports
from reef.releases import rollout
from reef.releases.canary_end import conclude
from reef.releases.live_reports import standing
from reef.releases.rollout import Mode, Rollout
from reef.releases.store import ReleaseStore
from reef.types import Decision, Release, Verdict

log = structlog.get_logger()

FILE = "canary.json"
"""In the folder `run` of the state folder: the canaries and where they stand, for `reef status`."""


class CanaryJudge:
    """Brings canaries to their ends.

    Args:
        store: database and artifacts.
        folder: where it writes down how they stand.
        stop: set when it is time to end.
    """

    def __init__(self, store: ReleaseStore, *, folder: Path, stop: threading.Event) -> None:
        self._store = store
        self._file = folder / FILE
        self._stop = stop
        self._seen: dict[str, tuple[int | None, Verdict]] = {}
        """By candidate: up to which report was looked, and what it came to. Only spares work."""

    def start(self, *, interval_s: float) -> None:
        """Begin, in a thread."""
        threading.Thread(target=self._run, args=(interval_s,), name="canaries", daemon=True).start()

    def look(self, *, now: float | None = None) -> list[Verdict]:
        """Look at every canary once, and end those that are at their end.

        Args:
            now: Unix seconds.
        """
        with self._store.engine.connect() as connection:
            under_way = rollout.under_way(connection, Mode.CANARY)
        found = [self._judge(canary, now=time.time() if now is None else now) for canary in under_way]
        self._seen = {canary.candidate.id: self._seen[canary.candidate.id] for canary in under_way if canary.candidate.id in self._seen}
        return found

    def _judge(self, canary: Rollout, *, now: float) -> Verdict:
        candidate = canary.candidate
        newest, seen = self._newest_report(candidate.scenario), self._seen.get(candidate.id)
        head = self._store.head(candidate.scenario)
        over = now - canary.started_at >= canary.plan.max_s
        if seen is not None and seen[0] == newest and head.step == candidate.base_step and not over:
            return seen[1]
        stands = standing(self._store.engine, canary, now=now)
        self._seen[candidate.id] = newest, stands.verdict
        if head.step != candidate.base_step:
            self._conclude(canary, _stale(stands.verdict, head))
        elif stands.decided:
            self._conclude(canary, stands.verdict)
        return stands.verdict

    def _conclude(self, canary: Rollout, verdict: Verdict) -> None:
        candidate = canary.candidate
        try:
            try:
                release = conclude(self._store, candidate.id, verdict)
            except StaleHead:
                verdict = _stale(verdict, self._store.head(candidate.scenario))
                release = conclude(self._store, candidate.id, verdict)
        except Conflict as error:  # a person was faster
            log.info("canary was ended by another", candidate=candidate.id, reason=error.message)
            return
        log.info(
            "canary ended",
            scenario=candidate.scenario,
            candidate=candidate.id,
            decision=verdict.decision,
            step=release.step if release else None,
            reason=verdict.reason,
        )

    def _newest_report(self, scenario: str) -> int | None:
        with self._store.engine.connect() as connection:
            return connection.execute(sa.select(sa.func.max(reports.c.seq)).where(reports.c.scenario == scenario)).scalar_one()

    def _run(self, interval_s: float) -> None:
        told = None
        while not self._stop.is_set():
            error = ""
            found: list[Verdict] = []
            try:
                found = self.look()
            except (ReefError, sa.exc.SQLAlchemyError) as problem:  # locked, full, gone: the next look may work
                error = problem.message if isinstance(problem, ReefError) else str(getattr(problem, "orig", None) or problem)
                log.error("canaries cannot be judged", reason=error)
            except Exception as problem:
                self._tell({"error": f"{type(problem).__name__}: {problem}"})
                log.error("judging canaries failed", exc_info=problem)
                raise
            telling = {"under_way": list(self._seen), "standing": [verdict.reason for verdict in found], "error": error}
            if telling != told:
                self._tell(telling)
                told = telling
            self._stop.wait(interval_s)

    def _tell(self, told: dict[str, Any]) -> None:
        try:
            process.write_atomically(self._file, json.dumps({"at": time.time(), **told}))
        except OSError as problem:  # on a full disk, say: the judgement itself counts
            log.error("how the canaries stand cannot be told", reason=str(problem))


def _stale(verdict: Verdict, head: Release) -> Verdict:
    """Nothing can be said any more: what the candidate was compared with serves no longer."""
    return replace(verdict, decision=Decision.INCONCLUSIVE, reason=f"Release {head.step} serves by now. {verdict.reason}")
