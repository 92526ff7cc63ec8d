"""Keeps experience within its budgets, from a thread of the learner's process.

Not the gateway's process and not its keeper's: what they do next is what clients wait for. Nobody waits for the learner, it knows what was
learned from, and there is one for a database however many gateways there are.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog

from reef import process
from reef.config import BudgetConfig, RetentionConfig
from reef.errors import StorageError
from reef.experience.retention import Budget, Policy, Retention

log = structlog.get_logger()

FILE = "retention.json"
"""In the folder `run` of the state folder: what the last pass came to, for `reef status`."""


def policy(config: RetentionConfig) -> Policy:
    """The budgets that are configured."""
    scenarios = {name: _budget(section) for name, section in config.scenarios.items()}
    return Policy(default=_budget(config), scenarios=scenarios, grace_s=config.grace_s)


class Housekeeping:
    """A thread that makes a pass at once and then every so often.

    Args:
        engine: the database; its tables exist.
        folder: where the outcome of each pass is written to.
        stop: set when it is time to end.
    """

    def __init__(self, engine: sa.Engine, config: RetentionConfig, *, folder: Path, stop: threading.Event) -> None:
        self._engine = engine
        self._retention = Retention(engine, policy(config), wait=stop.wait)
        self._interval_s = config.interval_s
        self._file = folder / FILE
        self._stop = stop

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="housekeeping", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            error, more = "", False
            try:
                more = any(outcome.more for outcome in self._retention.run())
            except (sa.exc.SQLAlchemyError, StorageError) as problem:  # locked, full, gone: the next pass may work
                error = str(getattr(problem, "orig", None) or problem)
                log.error("retention did not finish", reason=error)
            except Exception as problem:
                error = f"{type(problem).__name__}: {problem}"
                log.error("retention failed", exc_info=problem)
                self._tell(error)
                raise
            self._tell(error)
            if not more:
                self._stop.wait(self._interval_s)

    def _tell(self, error: str) -> None:
        told: dict[str, Any] = {"at": time.time(), "error": error}
        try:
            if self._engine.dialect.name == "sqlite":
                with self._engine.connect() as tx:
                    free = tx.exec_driver_sql("PRAGMA freelist_count").scalar_one()
                    told["reusable_bytes"] = free * tx.exec_driver_sql("PRAGMA page_size").scalar_one()
            process.write_atomically(self._file, json.dumps(told))
        except (OSError, sa.exc.SQLAlchemyError) as problem:  # on a full disk, say: the pass itself counts
            log.error("the outcome of retention cannot be told", reason=str(problem))


def _budget(section: BudgetConfig) -> Budget:
    return Budget(
        max_bytes=None if section.max_bytes is None else int(section.max_bytes),
        max_age_s=None if section.max_age_days is None else section.max_age_days * 86400,
    )
