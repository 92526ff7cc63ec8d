"""Each release's LoRA under a name of its own. Nothing pauses: a request asks for a name, and the head says which."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Collection, Sequence

from reef.errors import ReefError, WeightSyncError
from reef.serving.sync.engines import Deadline, Engine, at_once
from reef.serving.sync.interface import Served, Staged, Swap, Weights, WeightSync

FILE = "adapter_model.safetensors"
PIECE = 1 << 20


class LoraSync(WeightSync):
    """LoRAs on every replica; the old ones are kept for those who still use them.

    A name that an engine does not know is answered 404 by it, so the base model never answers in a LoRA's place.

    Args:
        engines: the replicas.
        keep: how many releases of a scenario stay loaded: ``max_staleness + 1``.
        in_use: the names that running sessions ask for, which stay too.
    """

    def __init__(self, engines: Sequence[Engine], *, keep: int, in_use: Callable[[], Collection[str]] = tuple) -> None:
        self._engines = tuple(engines)
        self._keep = max(1, keep)
        self._in_use = in_use
        self._active = ""
        self._before = ""

    def stage(self, weights: Weights, *, deadline_s: float = 600.0) -> Staged:
        deadline = Deadline(deadline_s)
        started = time.monotonic()
        digest = _digest(weights)
        what = f"load {weights.name}"
        try:
            loaded = at_once(self._engines, lambda engine: self._load(engine, weights, deadline), what=what, deadline=deadline)
        except WeightSyncError:
            self.drop(weights.name)
            raise
        size = (weights.folder / FILE).stat().st_size if any(loaded) else 0
        return Staged(weights.name, digest, tensors=0, size_bytes=size, seconds=time.monotonic() - started)

    def activate(self, weights: Weights, *, deadline_s: float = 60.0) -> Swap:
        deadline = Deadline(deadline_s)
        self.verify(weights, deadline_s=deadline.left())
        if weights.name != self._active:
            self._before, self._active = self._active, weights.name
        self._unload_old(deadline)
        now = time.time()
        return Swap(weights.name, self._before, now, now)

    def roll_back(self, *, deadline_s: float = 60.0) -> Swap:
        deadline = Deadline(deadline_s)
        if not self._before:
            raise WeightSyncError("nothing served before", hint="Stage and activate the release that should serve.")
        names = at_once(self._engines, lambda engine: set(_loaded(engine, deadline)), what="list its LoRAs", deadline=deadline)
        for engine, found in zip(self._engines, names, strict=True):
            if self._before not in found:
                raise WeightSyncError(f"{self._before} is no longer loaded on {engine.url}", hint="Stage and activate it again.")
        self._active, self._before = self._before, self._active
        now = time.time()
        return Swap(self._active, self._before, now, now)

    def verify(self, weights: Weights, *, deadline_s: float = 60.0) -> tuple[Served, ...]:
        deadline = Deadline(deadline_s)
        digest = _digest(weights)
        folders = at_once(self._engines, lambda engine: _loaded(engine, deadline), what="list its LoRAs", deadline=deadline)
        for engine, found in zip(self._engines, folders, strict=True):
            if found.get(weights.name) != str(weights.folder):
                other = f"from {found[weights.name]}" if weights.name in found else "not at all"
                raise WeightSyncError(f"{engine.url} has {weights.name} {other}, and it should from {weights.folder}", hint="Stage it.")
        return tuple(Served(engine.url, 0, weights.name, digest) for engine in self._engines)

    def drop(self, name: str, *, deadline_s: float = 30.0) -> None:
        deadline = Deadline(deadline_s)
        for engine in self._engines:
            with contextlib.suppress(ReefError):
                _unload(engine, name, deadline)

    def _load(self, engine: Engine, weights: Weights, deadline: Deadline) -> bool:
        """Whether it had to be loaded."""
        found = _loaded(engine, deadline).get(weights.name)
        if found == str(weights.folder):
            return False
        if found is not None:
            raise WeightSyncError(
                f"{engine.url} has another LoRA under the name {weights.name}, from {found}",
                hint="A name is never given twice.",
            )
        body = {"lora_name": weights.name, "lora_path": str(weights.folder)}
        engine.ask("POST", "/v1/load_lora_adapter", body, timeout_s=deadline.left())
        return True

    def _unload_old(self, deadline: Deadline) -> None:
        """Unload releases of the scenario beyond those that are kept. One that will not go is tried again with the next release."""
        scenario = self._active.rpartition(".")[0]
        wanted = {self._active, self._before, *self._in_use()}
        for engine in self._engines:
            with contextlib.suppress(ReefError):
                steps = sorted((step for name in _loaded(engine, deadline) if (step := _step(name, scenario)) is not None), reverse=True)
                for step in steps[self._keep :]:
                    if (name := f"{scenario}.{step}") not in wanted:
                        _unload(engine, name, deadline)


def _step(name: str, scenario: str) -> int | None:
    """Which release of a scenario a name is of; None for a candidate or another scenario's."""
    before, _, step = name.rpartition(".")
    return int(step) if before == scenario and step.isdecimal() else None


def _loaded(engine: Engine, deadline: Deadline) -> dict[str, str]:
    """The LoRAs of an engine and the folders that they came from."""
    models = engine.ask("GET", "/v1/models", timeout_s=deadline.left()).get("data") or []
    return {str(model["id"]): str(model.get("root", "")) for model in models if model.get("parent")}


def _unload(engine: Engine, name: str, deadline: Deadline) -> None:
    engine.ask("POST", "/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=deadline.left())


def _digest(weights: Weights) -> str:
    """SHA-256 of a LoRA's file.

    Raises:
        WeightSyncError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with (weights.folder / FILE).open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
    except OSError as error:
        raise WeightSyncError(f"{weights.folder / FILE} cannot be read: {error}", hint="Is it a peft folder?") from None
    return digest.hexdigest()
