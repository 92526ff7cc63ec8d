"""Attempts out of sessions that nobody reported on, for recipes that find their judgement elsewhere. They consume records, not reports.

A record is consumed once by each recipe as a report is: in the transaction that settles the candidate, under its receipt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from reef.experience.sessions import threads
from reef.experience.store import Unlearned
from reef.learner.recipe import Workbench
from reef.training.batches import Rollout
from reef.types import JSON, Record

WINDOW = 1000
"""Records looked at for one batch."""


@dataclass(slots=True)
class Unreported:
    """What was found."""

    rollouts: list[Rollout] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    """Receipts of records that will never be judged."""
    oldest: int = 0
    """Where in the log the first record stands that waits; 0: none does."""


def turns(bench: Workbench, *, recipe: str, idle_s: float, now: float, after: int = 0) -> Unreported:
    """Each answer after which something came is an attempt: what came next can be read as a judgement on it.

    An answer with nothing after it waits for that, and is passed over when its session has been idle for ``idle_s``: what the user
    thought of it nobody knows.
    """
    found = Unreported()
    for waiting, idle in _sessions(bench, recipe=recipe, idle_s=idle_s, now=now, after=after):
        found.oldest = found.oldest or waiting[0].position
        records = bench.store.session_records(bench.scenario, waiting[0].session)
        followed = next_states(records)
        by_id = {record.id: record for record in records}
        for each in waiting:
            if each.id in followed:
                found.rollouts.append(Rollout(name=each.id, records=(by_id[each.id],), reward=None, reports=(each.id,)))
            elif idle:
                found.passed_over.append(each.id)
    return found


def sessions(bench: Workbench, *, recipe: str, idle_s: float, now: float, after: int = 0) -> Unreported:
    """Each session that has been idle for ``idle_s`` is an attempt: those of its records that were not learned from."""
    found = Unreported()
    for waiting, idle in _sessions(bench, recipe=recipe, idle_s=idle_s, now=now, after=after):
        found.oldest = found.oldest or waiting[0].position
        if not idle:
            continue
        names = {each.id for each in waiting}
        records = tuple(each for each in bench.store.session_records(bench.scenario, waiting[0].session) if each.id in names)
        if records:
            found.rollouts.append(Rollout(name=records[0].id, records=records, reward=None, reports=tuple(record.id for record in records)))
    return found


def next_states(records: Sequence[Record]) -> dict[str, tuple[JSON, ...]]:
    """What came after each answer, by receipt: the result of the tool that it called, or what the user said to it.

    Not where the history was rewritten after it, or the same was asked again: then nothing answers to it.
    """
    found = {}
    for thread in threads(records):
        for before, after in pairwise(thread.exchanges):
            if before.answer and after.new and not after.rewritten and after.retry_of is None:
                found[before.record.id] = after.new
    return found


def _sessions(bench: Workbench, *, recipe: str, idle_s: float, now: float, after: int) -> Iterator[tuple[list[Unlearned], bool]]:
    """What waits of each session, the one that waits longest first, and whether the session is idle."""
    by_session: dict[str, list[Unlearned]] = {}
    for each in bench.store.unlearned(bench.scenario, recipe, after=after, limit=WINDOW):
        by_session.setdefault(each.session, []).append(each)
    for session, waiting in by_session.items():
        # The newest record of a session need not be among those that wait.
        newest = bench.store.records(bench.scenario, session=session, newest=True, limit=1)
        ended = max((record.started_at + record.duration_ms / 1000 for record in newest), default=0.0)
        yield waiting, max(ended, waiting[-1].ended_at) < now - idle_s
