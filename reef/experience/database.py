"""One database for all rooms that keep rows: the engine, its pragmas, and the metadata that tables register with."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import sqlalchemy as sa

metadata = sa.MetaData()

DIGEST_BYTES = 20
"""Length of the content digests that name nodes and blobs (BLAKE2b)."""


def connect(url: str) -> sa.Engine:
    """Open the database; create its folder when it is a file that does not exist yet.

    SQLite runs in WAL mode with ``synchronous=FULL``: a committed transaction survives loss of power.
    """
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(
        url, connect_args={"timeout": 30, "check_same_thread": False, "cached_statements": 512}, pool_size=8, max_overflow=8
    )
    sa.event.listen(engine, "connect", _pragmas)
    sa.event.listen(engine, "begin", _begin)
    return engine


def create_tables(engine: sa.Engine) -> None:
    """Create what is missing. Called once, by the supervisor, before any other process opens the database."""
    metadata.create_all(engine)


def _pragmas(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves: sqlite3's implicit one would start too late for DDL and reads
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "temp_store=MEMORY",
        "cache_size=-32000",
        "wal_autocheckpoint=4000",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    """Writers ask for the lock at once: a read upgraded to a write would fail with SQLITE_BUSY instead of waiting."""
    immediate = connection.get_execution_options().get("reef_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def write(engine: sa.Engine) -> sa.Engine:
    """The same engine, its transactions opened for writing: ``with write(engine).begin() as tx: …``."""
    return engine.execution_options(reef_write=True)
