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

from reef import failpoints
from reef.experience import schema
from reef.experience.rows import BLOB_COLUMNS, RECORD_COLUMNS, Rows

MOST_ROWS = 64
"""Rows of one statement: what load brings in a batch, and few enough for the driver to keep every size prepared."""


class Insert:
    """Inserts rows into one table."""

    def __init__(self, engine: sa.Engine, table: sa.Table, columns: Sequence[str], *, again: str = "") -> None:
        quote = engine.dialect.identifier_preparer.quote
        mark = "?" if engine.dialect.paramstyle == "qmark" else "%s"
        names = ", ".join(quote(column) for column in columns)
        row = "(" + ", ".join([mark] * len(columns)) + ")"
        head = f"INSERT INTO {quote(table.name)} ({names}) VALUES "  # noqa: S608 - names of our own
        self._texts = [head + ", ".join([row] * size) + again for size in range(MOST_ROWS + 1)]

    def run(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> None:
        """Insert ``rows``."""
        for start in range(0, len(rows), MOST_ROWS):
            part = rows[start : start + MOST_ROWS]
            cursor.execute(self._texts[len(part)], [value for row in part for value in row])


class BasesGone(Exception):
    """Retention dropped what the records of a batch are based on."""


class Bases:
    """Makes sure that records have their content, and that it stays until the end of the transaction.

    SQLite has one writer at a time. On PostgreSQL the rows are locked; whoever drops content passes rows over that others hold.
    """

    def __init__(self, engine: sa.Engine) -> None:
        mark, end = ("%s", " FOR SHARE") if engine.dialect.name == "postgresql" else ("?", "")
        head = f"SELECT 1 FROM {schema.records.name} WHERE gone_at IS NULL AND id IN ("  # noqa: S608 - names of our own
        self._texts = [head + ", ".join([mark] * size) + ")" + end for size in range(MOST_ROWS + 1)]

    def check(self, cursor: Any, receipts: Sequence[str]) -> None:
        """Look at ``receipts``.

        Raises:
            BasesGone: one of them has no content.
        """
        for start in range(0, len(receipts), MOST_ROWS):
            part = receipts[start : start + MOST_ROWS]
            if len(cursor.execute(self._texts[len(part)], part).fetchall()) < len(part):
                raise BasesGone


@dataclass(frozen=True, slots=True)
class Inserts:
    """The inserts of a batch."""

    bases: Bases
    blobs: Insert
    records: Insert

    def run(self, cursor: Any, rows: Rows) -> None:
        """Insert a batch.

        Raises:
            BasesGone: a record that one of them is based on has lost its content. Nothing was inserted.
        """
        now = time.time()
        self.bases.check(cursor, sorted(rows.bases))
        # in the order of their names: two gateways that touch the same ones must not wait for each other
        self.blobs.run(cursor, [(name, data, now, False) for name, data in sorted(rows.blobs.items())])
        self.records.run(cursor, rows.records)


def inserts(engine: sa.Engine) -> Inserts:
    """Prepare for the engine's dialect."""
    return Inserts(
        bases=Bases(engine),
        blobs=Insert(engine, schema.blobs, BLOB_COLUMNS, again=" ON CONFLICT (digest) DO UPDATE SET touched_at = excluded.touched_at"),
        records=Insert(engine, schema.records, RECORD_COLUMNS),
    )


def upsert_session(tx: sa.Connection, *, scenario: str, session: str, adapter: str, release: int | None) -> None:
    """Register a session, or update what it runs."""
    insert = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    statement = insert(schema.sessions).values(scenario=scenario, id=session, adapter=adapter, release=release, started_at=time.time())
    again = statement.on_conflict_do_update(
        index_elements=["scenario", "id"], set_={"adapter": statement.excluded.adapter, "release": statement.excluded.release}
    )
    tx.execute(again)
    failpoints.reach("session.inserted")
