"""Which revision of the tables a database has, and whether this version of Reef can work with it.

Every start asks, so it is plain SQL here; Alembic is loaded only to bring an older database up (`reef migrate`, :mod:`reef.migrations`).
"""

from __future__ import annotations

import sqlalchemy as sa

from reef.errors import ConfigError

REVISIONS = ("0001",)
"""Every revision there was, oldest first: the names of the files in `reef/migrations/versions`."""
HEAD = REVISIONS[-1]
"""The tables as this version of Reef writes them."""

version = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, made as Alembic makes it."""
_LOCK = 0x7265_6566
"""The PostgreSQL advisory lock of whoever changes tables."""


def create(tx: sa.Connection, metadata: sa.MetaData) -> None:
    """Create what an empty database lacks, in a transaction for writing, and note the revision.

    Raises:
        ConfigError: the database is of another revision.
    """
    lock(tx)
    empty = is_empty(tx, metadata)
    if not empty:
        check(tx, metadata)
    metadata.create_all(tx)
    if empty:
        version.create(tx, checkfirst=True)
        tx.execute(version.insert().values(version_num=HEAD))


def is_current(connection: sa.Connection, metadata: sa.MetaData) -> bool:
    """Whether there is nothing to create.

    Raises:
        ConfigError: the database is of another revision.
    """
    if is_empty(connection, metadata):
        return False
    check(connection, metadata)
    return set(metadata.tables) <= set(sa.inspect(connection).get_table_names())


def is_empty(connection: sa.Connection, metadata: sa.MetaData) -> bool:
    """Whether nothing of ours is there."""
    found = set(sa.inspect(connection).get_table_names())
    return found.isdisjoint(metadata.tables) and (version.name not in found or of(connection) is None)


def check(connection: sa.Connection, metadata: sa.MetaData) -> None:
    """Refuse a database that is not of the revision this version works with.

    Raises:
        ConfigError: it is older, or newer, or has no revision.
    """
    found = of(connection)
    if found == HEAD:
        return
    if found is None:
        raise ConfigError(
            "the database was made before Reef noted revisions of its tables, and cannot be used",
            hint="Move it away, or name another with storage.dir or storage.url.",
        )
    if found in REVISIONS:
        raise ConfigError(
            f"the database is of revision {found}, and this version of Reef works with {HEAD}",
            hint="Stop every Reef on it and run `reef migrate`, with the same -c and --set as `reef serve`.",
        )
    raise ConfigError(
        f"the database is of revision {found}, which this version of Reef does not know: a newer one made it",
        hint=f"Use that version. This one works with {HEAD}.",
    )


def of(connection: sa.Connection) -> str | None:
    """The revision of a database; None where none is noted."""
    if not sa.inspect(connection).has_table(version.name):
        return None
    return connection.execute(sa.select(version.c.version_num)).scalar()


def lock(tx: sa.Connection) -> None:
    """Keep others from changing tables until the transaction ends. SQLite has one writer anyway."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
