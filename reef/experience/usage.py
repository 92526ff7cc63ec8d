"""What each scenario holds, counted along the log: each record once, some time after it was stored, while nobody waits for it.

The sums are an estimate. Retention, which reads a scenario's rows before it drops any, puts them right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from reef import failpoints
from reef.experience import schema
from reef.experience.database import write
from reef.experience.tombstones import BYTES

WINDOW = 20_000
"""Records counted by one query: a tenth of a second."""
_LOCK = 0x7265_6567
"""The PostgreSQL advisory lock of whoever changes the sums."""
_records, _sums = schema.records, schema.retention
_ZERO = {column.name: 0 for column in _sums.c if column.name != "scenario"}


class Usage:
    """Keeps the sums current.

    PostgreSQL gives out numbers in the log before what gets them can be seen, so there a record is counted only when it was among the
    numbers given out at the look before.

    Args:
        engine: the database; its tables exist.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._settled: int | None = None

    def look(self) -> None:
        """Count what came since the last look."""
        with self._engine.connect() as tx:
            newest = tx.execute(sa.select(sa.func.max(_records.c.seq))).scalar() or 0
        up_to = newest if self._engine.dialect.name == "sqlite" else self._settled
        self._settled = newest
        while up_to is not None and self._count(up_to):
            pass

    def _count(self, up_to: int) -> bool:
        """Count one window; whether there may be more."""
        with self._engine.connect() as tx:
            done = counted_to(tx)
            end = min(up_to, done + WINDOW)
            if end <= done:
                return False
            query = sa.select(_records.c.scenario, sa.func.count(), sa.func.sum(BYTES))
            query = query.where(_records.c.seq > done, _records.c.seq <= end, _records.c.gone_at.is_(None))
            rows = [tuple(row) for row in tx.execute(query.group_by(_records.c.scenario))]
        with write(self._engine).begin() as tx:
            lock(tx)
            if counted_to(tx) != done:
                return True  # another process counted the same window
            for scenario, records, size in rows or [("", 0, 0)]:  # the next window begins behind this one even if nothing is in it
                add(tx, scenario, {"counted_to": end, "records": records, "bytes": size})
            failpoints.reach("retention.counted")
        return True


def add(tx: sa.Connection, scenario: str, changes: Mapping[str, int]) -> None:
    """Add to the sums of a scenario; ``counted_to`` is set."""
    insert = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    # of a scenario that is not there yet nothing can be taken away
    statement = insert(_sums).values(scenario=scenario, **{**_ZERO, **{name: max(0, value) for name, value in changes.items()}})
    changed: dict[str, Any] = {name: value if name == "counted_to" else _sums.c[name] + value for name, value in changes.items()}
    tx.execute(statement.on_conflict_do_update(index_elements=["scenario"], set_=changed))


def counted_to(tx: sa.Connection) -> int:
    """The newest record in the sums."""
    return tx.execute(sa.select(sa.func.max(_sums.c.counted_to))).scalar() or 0


def lock(tx: sa.Connection) -> None:
    """Keep others from the sums until the transaction ends. SQLite has one writer anyway."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))


def sums(engine: sa.Engine) -> dict[str, dict[str, int]]:
    """The sums by scenario: a row each, whatever there is to sum."""
    with engine.connect() as tx:
        rows = tx.execute(sa.select(_sums).where(_sums.c.scenario != "").order_by(_sums.c.scenario)).mappings().all()
    return {row["scenario"]: {name: max(0, row[name]) for name in _ZERO if name != "counted_to"} for row in rows}
