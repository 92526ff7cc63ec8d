"""Drops the content of sessions, newest record first, a few at a time; what stays is told in :mod:`reef.experience.tombstones`.

Nothing that a record is based on may go while the record stays. Bases are older than what is based on them and of the same session, so it
is enough that a session loses its newest records first and that none comes to it meanwhile:

* SQLite has one writer at a time. A transaction here looks whether its records are still the newest of their session; one that stores
  looks whether the bases it counts on still have their content, and else starts over (:class:`reef.experience.statements.Bases`).
* PostgreSQL: who stores holds its bases locked until it has committed. A transaction here locks its records without waiting, and leaves a
  session alone in which one is held; with the locks it looks for newer records. So a record is either seen, or its base is not dropped.

Serving does not wait for this: a transaction drops at most :data:`MOST_RECORDS` records or :data:`MOST_BYTES`, what takes long (reading,
digesting) comes before it, and between two of them is a pause several times as long as the last one held the database. It does not wait
for the disk either (``synchronous=NORMAL``): loss of power may bring back what was dropped last.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from reef import failpoints
from reef.errors import StorageError
from reef.experience import schema, usage
from reef.experience.database import write
from reef.experience.reader import ContentGone, Reader
from reef.experience.reserve import Reserve
from reef.experience.tombstones import BYTES, EMPTIED, Digester

MOST_RECORDS = 25
MOST_BYTES = 1024 * 1024
"""Of one transaction; a larger record goes alone."""
PAUSE_S = 0.01
PAUSE_FACTOR = 4
_BUSY = frozenset({"55P03", "40P01", "40001"})
"""PostgreSQL: a lock is held, a deadlock, a conflict."""
_records, _blobs = schema.records, schema.blobs


@dataclass(slots=True)
class Dropped:
    """What was dropped of a session."""

    records: int = 0
    bytes: int = 0
    whole: bool = False
    """Nothing of it is left. Else it was in use, or came to life again."""


class Dropper:
    """Drops sessions over one connection of its own.

    Args:
        engine: the database.
        wait: waits so many seconds; true if it is time to stop.
    """

    def __init__(self, engine: sa.Engine, *, wait: Callable[[float], Any]) -> None:
        self._engine = engine
        self._wait = wait
        self._most_records = MOST_RECORDS
        self._connection: sa.Connection | None = None

    def __enter__(self) -> Dropper:
        self._connection = write(self._engine).connect()
        if self._engine.dialect.name == "sqlite":
            raw: Any = self._connection.connection.dbapi_connection
            raw.execute("PRAGMA synchronous=NORMAL")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._connection is not None
        self._connection.invalidate()  # nobody else gets one that does not wait for the disk
        self._connection.close()

    def drop(self, scenario: str, session: str, *, before: float, counter: str | None) -> Dropped:
        """Drop a session.

        Args:
            before: only if all of it ended before this time.
            counter: the sum that counts these records besides.

        Raises:
            StorageError: the database does not take it, not even a record at a time.
        """
        done = Dropped()
        while True:
            try:
                size = self._drop_newest(scenario, session, before=before, counter=counter, done=done)
            except ContentGone:  # another pass is at it
                return done
            except sa.exc.OperationalError as error:
                if _is_busy(error):
                    return done
                given_up = Reserve(self._engine).give_up()
                if self._most_records == 1 and not given_up:
                    hint = "Free as much disk space as the database's `-wal` file takes; it then goes on by itself."
                    raise StorageError(f"content cannot be dropped: {error.orig}", hint=hint) from error
                self._most_records = 1  # what has to be written before space is free is then as little as can be
                self._checkpoint()
                continue
            if size is None:
                return done

    def _drop_newest(self, scenario: str, session: str, *, before: float, counter: str | None, done: Dropped) -> int | None:
        """Drop the newest records of a session; how many, None if there are none that may be."""
        of_session = (_records.c.scenario == scenario, _records.c.session == session, _records.c.gone_at.is_(None))
        with self._engine.connect() as tx:
            query = sa.select(_records, BYTES.label("bytes")).where(*of_session).order_by(_records.c.seq.desc())
            rows = _few(tx.execute(query.limit(self._most_records)).all())
            if not rows or any(row.started_at + row.duration_ms / 1000 > before for row in rows):
                done.whole = not rows
                return None
            reader, digester = Reader(tx), Digester()
            reader.add(rows)
            content = [digester.content(reader.record(row._mapping)) for row in rows]
        with self._transaction() as tx:
            still = sa.select(_records.c.id).where(_records.c.id.in_([row.id for row in rows]), _records.c.gone_at.is_(None))
            held = tx.execute(still.with_for_update(nowait=True)).all()
            newest = tx.execute(sa.select(sa.func.max(_records.c.seq)).where(*of_session)).scalar()
            if len(held) < len(rows) or newest != rows[0].seq:
                return None
            self._empty(tx, rows, content)
            self._sum_up(tx, scenario, rows, counter=counter)
            self._loosen_blobs(tx, rows)
            failpoints.reach("retention.slimmed")
        failpoints.reach("retention.dropped")
        done.records += len(rows)
        done.bytes += sum(row.bytes for row in rows)
        return len(rows)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """A short transaction, and the pause after it."""
        assert self._connection is not None
        with self._connection.begin():
            began = time.monotonic()  # from here on others wait; before it was us
            if self._connection.dialect.name == "postgresql":
                self._connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            yield self._connection
        self._wait(max(PAUSE_S, PAUSE_FACTOR * (time.monotonic() - began)))

    def _empty(self, tx: sa.Connection, rows: Sequence[sa.Row[Any]], content: Sequence[bytes]) -> None:
        statement = _records.update().where(_records.c.id == sa.bindparam("of"))
        now = time.time()
        values = [{"of": row.id, "gone_at": now, "content_digest": name, **EMPTIED} for row, name in zip(rows, content, strict=True)]
        tx.execute(statement, values)

    def _sum_up(self, tx: sa.Connection, scenario: str, rows: Sequence[sa.Row[Any]], *, counter: str | None) -> None:
        size = sum(row.bytes for row in rows)
        changes = {"records": -len(rows), "bytes": -size, "dropped": len(rows), "dropped_bytes": size}
        usage.add(tx, scenario, changes | ({counter: len(rows)} if counter else {}))

    def _loosen_blobs(self, tx: sa.Connection, rows: Sequence[sa.Row[Any]]) -> None:
        """Note what they used as perhaps unused; in the order of names, as whoever stores touches them."""
        names = sorted({bytes(name) for row in rows for name in (row.system, row.request_envelope) if name})
        found = tx.execute(
            sa.select(_blobs.c.digest).where(_blobs.c.digest.in_(names), ~_blobs.c.loose).order_by(_blobs.c.digest).with_for_update()
        )
        if fresh := [row.digest for row in found]:
            tx.execute(_blobs.update().where(_blobs.c.digest.in_(fresh)).values(loose=True))

    def _checkpoint(self) -> None:
        """Have SQLite's log written to where it belongs: then it begins anew instead of growing."""
        if self._engine.dialect.name == "sqlite":
            assert self._connection is not None
            raw: Any = self._connection.connection.dbapi_connection
            with contextlib.suppress(self._engine.dialect.loaded_dbapi.OperationalError):
                raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _few(found: Sequence[sa.Row[Any]]) -> Sequence[sa.Row[Any]]:
    """As many rows as one transaction may drop."""
    size = 0
    for place, row in enumerate(found):
        size += row.bytes
        if place and size > MOST_BYTES:
            return found[:place]
    return found


def _is_busy(error: sa.exc.OperationalError) -> bool:
    return getattr(error.orig, "sqlstate", None) in _BUSY or "locked" in str(error.orig)
