"""Keeps one engine at the full weights of one head; a part of :mod:`reef.learner.staging`, and run by its thread.

An engine has one set of full weights, in the place of those it was started with. Until new ones are in that place the old ones answer,
under their own name; an engine that lost them, as by a restart, refuses that name until they are there again.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import structlog

from reef import process
from reef.errors import ReefError
from reef.releases import staging
from reef.releases.publishing import writing
from reef.releases.staging import Wanted
from reef.releases.store import ReleaseStore
from reef.serving.engine.client import EngineClient
from reef.serving.sync.bring import Order, bring, settle
from reef.serving.sync.names import BASE

log = structlog.get_logger()

FILE = "weights.json"
"""In the folder `run` of the state folder: what the engine serves, for `reef status`."""
BACKOFF_FIRST_S = 2.0
BACKOFF_MOST_S = 60.0


class FullWeights:
    """Brings the full weights of a head to one engine, or the engine back to its own.

    Args:
        store: database and artifacts.
        client: the engine.
        order: how they are brought; name and folders are filled in here.
        base: gives the folder that the engine was started with; asked for the way over the disk alone.
        run: where is written down how it stands.
        stop: set when it is time to end.
    """

    def __init__(
        self, store: ReleaseStore, *, client: EngineClient, order: Order, base: Callable[[], Path], run: Path, stop: threading.Event
    ) -> None:
        self._store = store
        self._client = client
        self._order = order
        self._base = base
        self._file = run / FILE
        self._stop = stop
        self._settled = False
        self._retry_at = 0.0
        self._backoff_s = 0.0
        self.problem = ""
        """Why the weights that are wanted are not there; empty where nothing is known to be wrong."""

    def look(self, head: Wanted | None, *, folder: Callable[[Wanted], Path], served: str, noted: set[str]) -> str:
        """See to it that the engine serves what it should.

        Args:
            head: whose weights; None for those that the engine was started with.
            folder: lays weights out.
            served: what it answers by now; empty where it cannot tell.
            noted: what is noted as being there.

        Returns:
            What it answers by afterwards.

        Raises:
            EngineError: it does not answer.
        """
        if not self._settled:  # a learner before this one may have died while the engine stood still
            settle(self._client)
            self._settled = True
        name = head.name if head is not None else BASE
        if (served == name and (head is None or name in noted)) or (head is None and not served):
            self.problem, self._retry_at = "", 0.0
            return served
        if time.monotonic() < self._retry_at:
            return served
        try:
            self._tell(name, "bringing")
            brought = bring(self._ordered(head, folder=folder), stop=self._stop)
        except ReefError as error:
            self._failed(name, error)
            return served
        if head is not None:
            with writing(self._store.engine) as tx:
                staging.note(tx, self._client.url, head)
        self.problem, self._retry_at, self._backoff_s = "", 0.0, 0.0
        self._tell(name, "serving", **{key: value for key, value in asdict(brought).items() if key != "name"})
        log.info("full weights serve", **asdict(brought))
        return name

    def _ordered(self, head: Wanted | None, *, folder: Callable[[Wanted], Path]) -> Order:
        base = str(self._base()) if self._order.way == "disk" else ""
        if head is None:
            return replace(self._order, name=BASE, base=base)
        return replace(self._order, name=head.name, folder=str(folder(head)), base=base)

    def _failed(self, name: str, error: ReefError) -> None:
        if self.problem != error.message:
            log.error("full weights are not on the engine: what it had serves on", name=name, reason=error.message)
        self.problem = error.message
        self._backoff_s = min(max(BACKOFF_FIRST_S, self._backoff_s * 2), BACKOFF_MOST_S)
        self._retry_at = time.monotonic() + self._backoff_s
        self._tell(name, "failed", error=error.message)
        self._settled = False
        with contextlib.suppress(ReefError):  # it is gone, or hangs: the next look tries again, and says so
            settle(self._client)
            self._settled = True

    def _tell(self, name: str, state: str, **more: object) -> None:
        try:
            process.write_atomically(self._file, json.dumps({"name": name, "state": state, **more}))
        except OSError as problem:  # on a full disk, say: the weights themselves count
            log.error("how the weights stand cannot be told", reason=str(problem))
