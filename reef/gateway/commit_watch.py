"""Notices, within 100 ms, that another process or connection changed what is held in memory, so that it can be read again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
import structlog

from reef.experience import database

log = structlog.get_logger()

POLL_S = 0.05
LISTEN_S = 0.5
"""How long PostgreSQL is listened to before a look whether to stop."""

Refresh = Callable[[sa.Connection], None]
"""Reads something anew. It is called in the watcher's thread, and must read on the watcher's connection: in SQLite all of them then see
one snapshot, and none takes what it read for newer than what another did."""


class CommitWatch:
    """A thread that calls ``refreshers`` after changes.

    Args:
        engine: the database. SQLite: one row is polled (:func:`reef.experience.database.sign`). PostgreSQL: LISTEN.
        refreshers: called in order after a change of an announced table, also once at the start of the thread.
    """

    def __init__(self, engine: sa.Engine, refreshers: Sequence[Refresh]) -> None:
        self._engine = engine
        self._refreshers = refreshers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="commit-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Blocks for a moment."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _watch(self) -> None:
        complained = False
        while not self._stop.is_set():
            try:
                with self._engine.connect() as connection:
                    changed = self._postgresql(connection) if self._engine.dialect.name == "postgresql" else self._sqlite(connection)
                    for _ in changed:
                        self._refresh(connection)
                        complained = False
            except sa.exc.SQLAlchemyError as error:  # locked or full: what is known stays, and the next look may work
                if not complained:
                    log.error("the database cannot be watched", reason=str(error))
                complained = True
                self._stop.wait(1)

    def _refresh(self, connection: sa.Connection) -> None:
        for refresh in self._refreshers:
            refresh(connection)
        connection.rollback()  # an open transaction would go on seeing what it saw, and hold back checkpoints

    def _sqlite(self, connection: sa.Connection) -> Iterator[None]:
        """Yields at the start, and after each change of what is announced.

        By the driver, and one row at a time: each call of SQLite takes the interpreter from what serves, and under load there is a commit
        between any two looks. To read everything again after each of them cost a tenth of the throughput.
        """
        raw: Any = connection.connection.dbapi_connection
        look = database.sign()
        seen = None
        while not self._stop.is_set():
            try:
                sign = raw.execute(look).fetchall()
            except self._engine.dialect.loaded_dbapi.Error as error:
                raise sa.exc.OperationalError(look, None, error) from error
            if sign != seen:
                yield
                seen = sign
            self._stop.wait(POLL_S)

    def _postgresql(self, connection: sa.Connection) -> Iterator[None]:
        """The same for what :func:`reef.experience.database.announce` announces; outside a transaction, which would hold it back."""
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        raw: Any = connection.connection.dbapi_connection
        raw.execute(f"LISTEN {database.CHANGES}")
        yield
        while not self._stop.is_set():
            try:
                if list(raw.notifies(timeout=LISTEN_S, stop_after=1)):
                    yield
            except self._engine.dialect.loaded_dbapi.Error as error:
                raise sa.exc.OperationalError("LISTEN", None, error) from error
