"""Brings the tables of an older database up to what this version of Reef works with: `reef migrate`, by Alembic.

One history for the tables of all rooms, in ``versions``; on an empty database it makes what
:func:`reef.experience.database.create_tables` does. `reef serve` never comes here: it refuses an older database, so that nobody's only
copy is rewritten by a restart.

To change tables: change the schema, add ``versions/NNNN_what.py`` that does the same to tables which are there, name it in
:data:`reef.experience.revisions.REVISIONS`, and freeze what ``0001`` creates. The tests compare both ways.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import TextIO

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from reef.errors import ReefError
from reef.experience import database, revisions, schema, tokens  # noqa: F401 - register their tables
from reef.releases import schema as _releases  # noqa: F401

COPY_PAGES = 1000


class MigrationError(ReefError):
    """A migration failed. The database is as it was."""

    type = "migration_error"


def configuration(output: TextIO | None = None) -> Config:
    """Alembic's configuration, without a file."""
    found = Config() if output is None else Config(output_buffer=output)
    found.set_main_option("script_location", "reef:migrations")
    found.set_main_option("path_separator", "os")
    return found


def needed(engine: sa.Engine) -> bool:
    """Whether there is something to do.

    Raises:
        ConfigError: the database is newer than this version, or has no revision.
    """
    with engine.connect() as connection:
        if revisions.is_empty(connection, database.metadata):
            return True
        found = revisions.of(connection)
        if found in revisions.REVISIONS[:-1]:
            return True
        revisions.check(connection, database.metadata)
        return False


def upgrade(engine: sa.Engine, *, config: Config | None = None) -> None:
    """Bring the database to the newest revision, all of it or nothing.

    Raises:
        MigrationError: it failed, and nothing was changed.
    """
    config = config or configuration()
    with database.write(engine).connect() as connection:
        sqlite = connection.dialect.name == "sqlite"
        if sqlite:  # to change a table SQLite needs to make another and drop the first, and no others may go with it
            connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
        try:
            with connection.begin():
                revisions.lock(connection)
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                if sqlite and (broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first()) is not None:
                    raise MigrationError(
                        f"after it a row of {broken[0]} would point nowhere", hint="Nothing was changed. Please report it."
                    )
        except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
            raise MigrationError(f"the migration failed: {getattr(error, 'orig', None) or error}", hint="Nothing was changed.") from error
        finally:
            connection.invalidate()  # nobody else gets one that does not check foreign keys


def script(engine: sa.Engine, output: TextIO) -> None:
    """Write the SQL that :func:`upgrade` would run."""
    with engine.connect() as connection:
        current = revisions.of(connection)
    config = configuration(output)
    config.attributes["dialect"] = engine.dialect.name
    command.upgrade(config, f"{current or 'base'}:head", sql=True)


def copy(engine: sa.Engine) -> Path | None:
    """Copy a SQLite database beside itself, under the name of its revision. None where that is for others to do, or nothing is there."""
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or not Path(name).exists():
        return None
    with engine.connect() as connection:
        current = revisions.of(connection)
    if current is None:
        return None
    target = Path(f"{name}.{current}-{time.strftime('%Y%m%d-%H%M%S')}")
    unfinished = target.with_name(f".{target.name}.unfinished")
    source, kept = sqlite3.connect(name), sqlite3.connect(unfinished)
    try:
        source.backup(kept, pages=COPY_PAGES)
        kept.execute("PRAGMA journal_mode=DELETE")  # one file, whole
    except sqlite3.Error as error:
        unfinished.unlink(missing_ok=True)
        raise MigrationError(
            f"{name} could not be copied: {error}", hint="Nothing was changed. A copy needs as much space again."
        ) from error
    finally:
        source.close()
        kept.close()
    unfinished.replace(target)
    return target
