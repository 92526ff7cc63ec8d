"""`reef retention`: one pass now. It works on the database itself, beside a `reef serve` or without one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def retention(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="serve.yaml")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Override a key: a.b=value. May be repeated.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Drop nothing; say what would go.")] = False,
) -> None:
    """Drop now what is beyond the budgets of `storage.retention`, and say what went. It may run while `reef serve` does."""
    from reef import config as configuration
    from reef.cli.show import show_retention
    from reef.experience import database
    from reef.experience.retention import Retention
    from reef.learner.housekeeping import policy
    from reef.releases import schema as _releases  # noqa: F401 - registers its tables

    loaded = configuration.load(config, settings=settings or ())
    engine = database.connect(loaded.database_url)
    try:
        database.create_tables(engine)
        passing = Retention(engine, policy(loaded.storage.retention))
        outcomes = passing.run_all(dry=dry_run)
        show_retention(outcomes, dry=dry_run, blobs=0 if dry_run else passing.sweep())
    finally:
        engine.dispose()
