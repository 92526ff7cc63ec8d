"""`reef migrate`: the tables of an older database brought up. It works on the database itself, while nothing runs on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def migrate(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="serve.yaml")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Override a key: a.b=value. May be repeated.")] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL and change nothing.")] = False,
) -> None:
    """Bring the database's tables to what this version of Reef works with; SQLite is copied first."""
    from reef import config as configuration
    from reef import migrations
    from reef.experience import database, revisions
    from reef.supervisor import alone

    loaded = configuration.load(config, settings=settings or ())
    engine = database.connect(loaded.database_url)
    try:
        if not migrations.needed(engine):
            print(f"the database is of revision {revisions.HEAD} already", file=sys.stderr if sql else sys.stdout)
            return
        if sql:
            migrations.script(engine, sys.stdout)
            return
        with alone(loaded.state_dir):
            kept = migrations.copy(engine)
            if kept is not None:
                print(f"copied to {kept}")
            migrations.upgrade(engine)
        print(f"the database is of revision {revisions.HEAD} now")
    finally:
        engine.dispose()
