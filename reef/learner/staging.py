"""Keeps the engine supplied with the weights that it has to have, from a thread of the learner's process.

What is wanted is read from the database and what is there is asked of the engine, so it does not matter who moved a head, and an engine
that was restarted gets everything again. Weights are laid out once as a folder of their own, sharing their bytes with the repository.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import structlog

from reef.artifacts import folders
from reef.errors import ReefError
from reef.releases import staging
from reef.releases.publishing import writing
from reef.releases.staging import Wanted
from reef.releases.store import ReleaseStore
from reef.serving.engine.client import EngineClient
from reef.serving.sync.interface import WeightKind, Weights, weights_in
from reef.serving.sync.lora import LoraSync

log = structlog.get_logger()

STAGE_S = 120.0
"""Bound on bringing one LoRA to the engine."""


class Stager:
    """Brings LoRAs to one engine.

    Args:
        store: database and artifacts.
        client: the engine.
        folder: where weights are laid out.
        keep: how many releases of a scenario stay there.
        stop: set when it is time to end.
    """

    def __init__(self, store: ReleaseStore, *, client: EngineClient, folder: Path, keep: int, stop: threading.Event) -> None:
        self._store = store
        self._client = client
        self._folder = folder
        self._keep = keep
        self._stop = stop
        self._syncs: dict[str, LoraSync] = {}
        self._refused: dict[str, str] = {}
        """Names that could not be staged, and why: said once, and tried again each time."""

    def start(self, *, interval_s: float) -> None:
        """Begin, in a thread."""
        threading.Thread(target=self._run, args=(interval_s,), name="staging", daemon=True).start()

    def _run(self, interval_s: float) -> None:
        told = ""
        while not self._stop.wait(interval_s):
            try:
                self.look()
                told = ""
            except ReefError as error:
                if error.message != told:  # an engine may be down for hours
                    log.warning("weights wait for the engine", reason=error.message)
                told = error.message
                self._stop.wait(interval_s * 4)
            except Exception:  # a bug; one that is seen, and the next look may find another state
                log.exception("staging failed")
                self._stop.wait(interval_s * 4)

    def look(self) -> None:
        """Compare what is wanted with what is there, and bring what is missing.

        Raises:
            EngineError: the engine does not answer; nothing is noted as being there then.
        """
        with self._store.engine.connect() as connection:
            wanted = staging.wanted(connection, keep=self._keep)
            noted = staging.noted(connection, self._client.url)
        if not wanted and not noted:
            return
        try:
            there = set(self._client.models())
        except ReefError:
            self._forget(noted)
            raise
        self._forget(noted - there)
        names = {weights.name for weights in wanted}
        for weights in wanted:
            if weights.name not in noted & there:
                self._stage(weights)
        for name in noted & there - names:
            self._forget([name])
            self._sync(name.rpartition(".")[0]).drop(name)

    def _stage(self, wanted: Wanted) -> None:
        try:
            weights = self._weights(wanted)
            self._sync(wanted.scenario).stage(weights, deadline_s=STAGE_S)
        except ReefError as error:
            if self._refused.get(wanted.name) != error.message:
                log.error("weights are not on the engine", name=wanted.name, reason=error.message)
            self._refused[wanted.name] = error.message
            return
        self._refused.pop(wanted.name, None)
        with writing(self._store.engine) as tx:
            staging.note(tx, self._client.url, wanted)
        log.info("weights are on the engine", name=wanted.name)

    def why_not(self, name: str) -> str:
        """Why weights could not be staged; empty where nothing is known to be wrong."""
        return self._refused.get(name, "")

    def _weights(self, wanted: Wanted) -> Weights:
        """Weights as a folder.

        Raises:
            InvalidRequest: they are no LoRA.
        """
        folder = laid_out(self._store, wanted, folder=self._folder)
        weights = weights_in(folder, name=wanted.name)
        if weights.kind is not WeightKind.LORA:
            raise ReefError(
                f"{wanted.name} is a whole model, and beside others an engine can only have LoRAs",
                hint="Train LoRAs (training.method: lora), or bring a whole model in by reef.serving.sync.",
            )
        return weights

    def _sync(self, scenario: str) -> LoraSync:
        return self._syncs.setdefault(scenario, LoraSync([self._client], keep=self._keep))

    def _forget(self, names: Sequence[str] | set[str]) -> None:
        if names:
            with writing(self._store.engine) as tx:
                staging.forget(tx, self._client.url, names)


def laid_out(store: ReleaseStore, wanted: Wanted, *, folder: Path) -> Path:
    """The folder of some weights, made where it is not there; never changed afterwards."""
    target = folder / wanted.content.content_id
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".in-", dir=folder))
        try:
            folders.lay_out(store.artifacts, store.artifacts.read(wanted.content.commit), temporary / "weights")
            if not target.is_dir():
                (temporary / "weights").rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target
