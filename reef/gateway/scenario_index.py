"""Scenarios and their heads in memory, so that no request asks the database; :mod:`reef.gateway.commit_watch` keeps them fresh."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
import structlog

from reef.config import ScenariosConfig
from reef.errors import InvalidRequest, NotFound
from reef.releases import statements
from reef.releases.controller import Controller
from reef.releases.mirror import check_scenario_name
from reef.types import Tree

log = structlog.get_logger()

NAME = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,127}")
MAX_STEP = 2**31 - 1
"""The largest step of a release that a request may name: what an integer column holds in both databases."""

PLAIN = r"^[^\x00]*$"
"""A text that a column of either database takes: PostgreSQL has no NUL."""


def described(schema: dict[str, Any]) -> None:
    """Say in a field's JSON schema what a name looks like; :func:`check_name` refuses others, with a hint."""
    schema["pattern"] = f"^{NAME.pattern}$"


def check_name(name: str, *, what: str = "scenario") -> str:
    """Check a scenario's or session's name.

    Raises:
        InvalidRequest: it has other characters, starts with a dot, or is empty or too long.
    """
    if NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name[:140]!r} is not a {what} name", hint="1 to 128 of the characters A-Z a-z 0-9 . _ : -, the first not a dot."
        )
    return name


class ScenarioIndex:
    """Knows which scenarios exist.

    Args:
        controller: creates scenarios and tells heads.
        config: which scenarios may exist.
        starter: gives the tree a new scenario starts from.
    """

    def __init__(self, *, controller: Controller, config: ScenariosConfig, starter: Callable[[], Tree]) -> None:
        self._controller = controller
        self._config = config
        self._starter = starter
        self._heads: dict[str, int] = {}
        self._creating: dict[str, asyncio.Task[None]] = {}

    @property
    def default(self) -> str:
        """The scenario of requests that name none."""
        return self._config.names[0] if self._config.names else "default"

    @property
    def heads(self) -> Mapping[str, int]:
        """The step of every scenario's head."""
        return self._heads

    def check_name(self, name: str) -> str:
        """Check a scenario's name: :func:`check_name`, and it must do for the refs its chain is mirrored to.

        Raises:
            InvalidRequest: it does not.
        """
        check_scenario_name(check_name(name))
        return name

    def check(self, name: str) -> None:
        """Refuse a scenario that is not there and may not be created by using it.

        Raises:
            InvalidRequest: not a name.
            NotFound: unknown.
        """
        if name in self._heads:
            return
        self.check_name(name)
        if not self._config.implicit and name not in self._config.names:
            raise NotFound(
                f"there is no scenario {name}",
                hint="POST /reef/scenarios creates one; scenarios.implicit: true creates them at first use.",
            )

    def touch(self, name: str) -> None:
        """See to it that a scenario exists, in the background: an answer does not wait for its chain to begin."""
        if name not in self._heads and name not in self._creating:
            self._start_creating(name)

    async def ensure(self, name: str) -> None:
        """See to it that a scenario exists.

        Raises:
            InvalidRequest: not a name.
        """
        self.check_name(name)
        if name not in self._heads:
            await asyncio.shield(self._creating.get(name) or self._start_creating(name))

    async def start(self) -> None:
        """Read the heads, and create the configured scenarios."""
        self._heads = await asyncio.to_thread(self._controller.scenarios)
        for name in self._config.names:
            self.touch(self.check_name(name))

    async def stop(self) -> None:
        """Wait for scenarios that are being created."""
        await asyncio.gather(*self._creating.values(), return_exceptions=True)

    def refresh(self, connection: sa.Connection) -> None:
        """Read the heads again."""
        self._heads = statements.steps(connection)

    def _start_creating(self, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._create(name), name=f"create scenario {name}")
        self._creating[name] = task
        task.add_done_callback(lambda done: self._created(name, done))
        return task

    async def _create(self, name: str) -> None:
        def create() -> int:
            return self._controller.ensure_scenario(name, starter=self._starter()).step

        step = await asyncio.to_thread(create)
        self._heads.setdefault(name, step)  # in place: the watcher's thread may have read newer heads meanwhile

    def _created(self, name: str, task: asyncio.Task[None]) -> None:
        del self._creating[name]  # after a failure the next use tries again
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("scenario not created", scenario=name, reason=str(error))
