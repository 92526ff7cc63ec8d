"""Every session of a scenario with what it holds, and how much anybody waits for it: what retention decides by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from reef.experience import schema, usage
from reef.experience.tombstones import BYTES
from reef.types import Origin

PAGE = 500
"""Sessions read by one query."""
PAUSE_S = 0.005
_records, _quoted, _used = schema.records, schema.report_references, schema.consumptions

_REPORTED = sa.exists().where(_quoted.c.record == _records.c.id)
_WAITING = sa.exists().where(_quoted.c.record == _records.c.id, ~sa.exists().where(_used.c.report == _quoted.c.report))


class Session(NamedTuple):
    """One that might go. They sort in the order in which they would."""

    unexpired: bool
    rank: int
    """0: learned from, or no user's work. 1: nobody reported on it. 2: reported on, and not learned from yet."""
    newest_at: float
    name: str
    bytes: int
    records: int


class Survey:
    """One look at a scenario. Its sums are whole once all sessions were taken.

    Args:
        expired_before: what ended before is beyond its age.
        idle_since: what did not end before is in use.
    """

    def __init__(self, engine: sa.Engine, scenario: str, *, expired_before: float, idle_since: float) -> None:
        self._engine = engine
        self.scenario = scenario
        self._expired_before = expired_before
        self._idle_since = idle_since
        with engine.connect() as tx:
            self.counted_to = usage.counted_to(tx)
        self.bytes = 0
        self.counted_bytes = 0
        """Of those, what :mod:`reef.experience.usage` has counted already."""
        self.counted_records = 0
        self.oldest: float | None = None
        """When the oldest ended that is idle and not beyond its age."""
        self.complete = False

    def idle_sessions(self, *, wait: Callable[[float], Any]) -> Iterator[Session]:
        """Those that are not in use, a page at a time: no transaction stays open for long.

        Args:
            wait: waits so many seconds; true if it is time to stop.
        """
        query = self._query()
        last = ""
        while True:
            with self._engine.connect() as tx:
                page = tx.execute(query.where(_records.c.session > last)).all()
            for row in page:
                self.bytes += int(row.bytes)
                self.counted_bytes += int(row.counted_bytes)
                self.counted_records += row.counted_records
                if row.newest_at <= self._idle_since:
                    yield self._session(row)
            if len(page) < PAGE:
                self.complete = True
                return
            if wait(PAUSE_S):
                return
            last = page[-1].name

    def _session(self, row: sa.Row[Any]) -> Session:
        unexpired = row.newest_at >= self._expired_before
        if unexpired and (self.oldest is None or row.newest_at < self.oldest):
            self.oldest = row.newest_at
        rank = 2 if row.waiting else 0 if row.reported or not row.of_a_user else 1
        return Session(unexpired, rank, row.newest_at, row.name, int(row.bytes), row.records)

    def _query(self) -> sa.Select[Any]:
        counted = _records.c.seq <= self.counted_to
        query = sa.select(
            _records.c.session.label("name"),
            sa.func.max(_records.c.started_at + _records.c.duration_ms / 1000).label("newest_at"),
            sa.func.count().label("records"),
            sa.func.sum(BYTES).label("bytes"),
            sa.func.sum(sa.case((counted, 1), else_=0)).label("counted_records"),
            sa.func.sum(sa.case((counted, BYTES), else_=0)).label("counted_bytes"),
            sa.func.max(sa.case((_WAITING, 1), else_=0)).label("waiting"),
            sa.func.max(sa.case((_REPORTED, 1), else_=0)).label("reported"),
            sa.func.max(sa.case((_records.c.origin == Origin.USER.value, 1), else_=0)).label("of_a_user"),
        )
        query = query.where(_records.c.scenario == self.scenario, _records.c.gone_at.is_(None))
        return query.group_by(_records.c.session).order_by(_records.c.session).limit(PAGE)
