"""One database for all rooms that keep rows: the engine, its pragmas, and the metadata that tables register with."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from reef.errors import ConfigError
from reef.experience import revisions

metadata = sa.MetaData()

DIGEST_BYTES = 20
"""Length of the content digests that name nodes and blobs (BLAKE2b)."""
CONNECT_TIMEOUT_S = 10
_SIGN = "sign"
CHANGES = "reef_changes"
"""The PostgreSQL channel that tells of changes."""
BEGIN_WRITE = "BEGIN IMMEDIATE"
"""Of SQLite. Writers ask for the lock at once: a read upgraded to a write would fail with SQLITE_BUSY instead of waiting."""
_ANNOUNCE = f"""
CREATE OR REPLACE FUNCTION reef_announce() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_notify(''{CHANGES}'', TG_TABLE_NAME); RETURN NULL; END'
"""
_URL_HINT = "Use sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE; empty means SQLite in the state folder."


# Before it binds a value of these types, the driver looks for an adapter: it makes and drops an AttributeError or two, each time. One that
# gives the value back as it is takes less.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(bool, int)
sqlite3.register_adapter(type(None), {}.get)  # type: ignore[arg-type]


def connect(url: str) -> sa.Engine:
    """Open the database, ``sqlite:///FILE`` or ``postgresql://…``; create the folder of a file that does not exist yet.

    SQLite runs in WAL mode with ``synchronous=FULL``: a committed transaction survives loss of power. PostgreSQL does so by default.

    Raises:
        ConfigError: another kind of database, or the driver for it is not installed.
    """
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise ConfigError("storage.url is not a database URL", hint=_URL_HINT) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return _connect_sqlite(parsed)
    if backend != "postgresql":
        raise ConfigError(f"storage.url: {backend} is not supported", hint=_URL_HINT)
    try:
        return sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S},
            pool_size=8,
            max_overflow=8,
            pool_pre_ping=True,  # a server that was restarted costs one more round trip, not a failed request
        )
    except ModuleNotFoundError:
        raise ConfigError("storage.url names PostgreSQL, and its driver is not installed", hint="pip install 'reef[postgres]'") from None


def _connect_sqlite(url: sa.URL) -> sa.Engine:
    if url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    arguments = {"timeout": 30, "check_same_thread": False, "cached_statements": 512}
    engine = sa.create_engine(url, connect_args=arguments, pool_size=8, max_overflow=8)
    sa.event.listen(engine, "connect", _pragmas)
    sa.event.listen(engine, "begin", _begin)
    return engine


def announce(table: sa.Table, *sums: sa.ColumnElement[Any]) -> None:
    """Have every change of ``table`` noticed: PostgreSQL NOTIFYs :data:`CHANGES`, and in SQLite :func:`sign` is another afterwards.

    Args:
        table: a small one, for SQLite reads all of it.
        sums: aggregates of which one changes with every change that keeps the number of rows.
    """
    table.info[_SIGN] = (sa.func.count(), *sums)
    trigger = f"CREATE TRIGGER {table.name}_announce AFTER INSERT OR UPDATE OR DELETE ON {table.name} EXECUTE FUNCTION reef_announce()"
    sa.event.listen(table, "after_create", sa.DDL(_ANNOUNCE).execute_if(dialect="postgresql"))
    sa.event.listen(table, "after_create", sa.DDL(trigger).execute_if(dialect="postgresql"))


def sign() -> str:
    """A statement for SQLite's driver. It gives one row, which is another one after each change of a table that is announced."""
    parts = [sa.select(*table.info[_SIGN]).select_from(table).subquery() for table in metadata.tables.values() if _SIGN in table.info]
    return str(sa.select(*parts).compile(dialect=sqlite.dialect()))


def create_tables(engine: sa.Engine) -> None:
    """Create what is missing. Called by the supervisor, before any other process opens the database.

    Raises:
        ConfigError: the database is of an older or newer revision; nothing was changed.
    """
    with engine.connect() as connection:
        if revisions.is_current(connection, metadata):
            return
    with write(engine).begin() as tx:
        revisions.create(tx, metadata)


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
    immediate = connection.get_execution_options().get("reef_write", False)
    connection.exec_driver_sql(BEGIN_WRITE if immediate else "BEGIN")


def write(engine: sa.Engine) -> sa.Engine:
    """The same engine, its transactions opened for writing: ``with write(engine).begin() as tx: …``."""
    return engine.execution_options(reef_write=True)
