"""SQL of the writer.

The inserts of the hot path are plain text with many rows each, run on the driver's own cursor. SQLite's driver gives the
interpreter's lock away for every statement and every row of an ``executemany``; to get it back from a busy event loop takes longer than
to insert a row.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from reef.experience import schema
from reef.experience.rows import BLOB_COLUMNS, RECORD_COLUMNS, Rows

MOST_ROWS = 64
"""Rows of one statement: what load brings in a batch, and few enough for the driver to keep every size prepared."""


class Insert:
    """Inserts rows into one table."""

    def __init__(self, engine: sa.Engine, table: sa.Table, columns: Sequence[str], *, once: bool) -> None:
        quote = engine.dialect.identifier_preparer.quote
        mark = "?" if engine.dialect.paramstyle == "qmark" else "%s"
        names = ", ".join(quote(column) for column in columns)
        row = "(" + ", ".join([mark] * len(columns)) + ")"
        end = " ON CONFLICT DO NOTHING" if once else ""
        head = f"INSERT INTO {quote(table.name)} ({names}) VALUES "  # noqa: S608 - names of our own
        self._texts = [head + ", ".join([row] * size) + end for size in range(MOST_ROWS + 1)]

    def run(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> None:
        """Insert ``rows``."""
        for start in range(0, len(rows), MOST_ROWS):
            part = rows[start : start + MOST_ROWS]
            cursor.execute(self._texts[len(part)], [value for row in part for value in row])


@dataclass(frozen=True, slots=True)
class Inserts:
    """The inserts of a batch."""

    blobs: Insert
    records: Insert

    def run(self, tx: sa.Connection, rows: Rows) -> None:
        """Insert a batch."""
        cursor = tx.connection.cursor()
        try:
            self.blobs.run(cursor, list(rows.blobs.items()))
            self.records.run(cursor, rows.records)
        except tx.dialect.loaded_dbapi.OperationalError as error:
            raise sa.exc.OperationalError("INSERT", None, error) from error


def inserts(engine: sa.Engine) -> Inserts:
    """Prepare for the engine's dialect."""
    return Inserts(
        blobs=Insert(engine, schema.blobs, BLOB_COLUMNS, once=True),
        records=Insert(engine, schema.records, RECORD_COLUMNS, once=False),
    )


def upsert_session(tx: sa.Connection, *, scenario: str, session: str, adapter: str, release: int | None) -> None:
    """Register a session, or update what it runs."""
    insert = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    statement = insert(schema.sessions).values(scenario=scenario, id=session, adapter=adapter, release=release, started_at=time.time())
    again = statement.on_conflict_do_update(
        index_elements=["scenario", "id"], set_={"adapter": statement.excluded.adapter, "release": statement.excluded.release}
    )
    tx.execute(again)
