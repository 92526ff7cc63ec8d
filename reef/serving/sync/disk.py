"""Full weights that the engine reads from the disk by itself: the slow way, for an engine that was started without our worker.

All the reading is within the pause, and the engine must see the same path. It works with any vLLM that has its developer's routes; but on
a CPU, and with a model whose output layer shares the embedding's weight, that layer goes on with the old one unless our worker is there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from reef.errors import ReefError, WeightSyncError
from reef.serving.sync.engines import Deadline, Engine, at_once, rpc
from reef.serving.sync.held import Version, read_folder
from reef.serving.sync.interface import Served, Staged, Swap, Weights, WeightSync
from reef.serving.sync.names import BASE
from reef.serving.sync.swapping import resume, swap, weight_version


class DiskSync(WeightSync):
    """Reload from a folder.

    Args:
        engines: the replicas.
        base: the folder that they were started with, to go back to before anything else was activated.
    """

    def __init__(self, engines: Sequence[Engine], *, base: Path) -> None:
        self._engines = tuple(engines)
        self._folders: dict[str, Path] = {BASE: base}
        self._serving = ""
        self._before = ""
        self._staged: Staged | None = None

    def stage(self, weights: Weights, *, deadline_s: float = 600.0) -> Staged:
        started = time.monotonic()
        resume(self._engines, deadline_s=min(5.0, deadline_s))
        try:
            version = Version(weights.name, read_folder(weights.folder))
            digest = version.digest()  # reads every byte: the engine finds them in memory
        except OSError as error:
            raise WeightSyncError(f"the weights of {weights.name} cannot be read: {error}") from None
        size = sum(tensor.nbytes for tensor in version.tensors.values())
        self._staged = Staged(weights.name, digest, tensors=len(version.tensors), size_bytes=size, seconds=time.monotonic() - started)
        return self._staged

    def activate(self, weights: Weights, *, deadline_s: float = 60.0) -> Swap:
        if self._staged is None or self._staged.name != weights.name:
            raise WeightSyncError(f"{weights.name} is not staged", hint="Call stage first.")
        previous = self._versions(deadline_s)
        self._folders[weights.name] = weights.folder
        done = self._swap(weights.name, previous, deadline_s)
        self._serving, self._before = weights.name, done.previous
        self._folders = {name: self._folders[name] for name in (self._serving, self._before, BASE) if name in self._folders}
        return done

    def roll_back(self, *, deadline_s: float = 60.0) -> Swap:
        if not self._before or self._before not in self._folders:
            raise WeightSyncError("nothing served before", hint="Stage and activate the release that should serve.")
        done = self._swap(self._before, self._versions(deadline_s), deadline_s)
        self._serving, self._before = self._before, self._serving
        return done

    def back_to_base(self, *, deadline_s: float = 60.0) -> Swap:
        """Make what the engines were started with answer again.

        Raises:
            WeightSyncError: an engine could not take it.
        """
        resume(self._engines, deadline_s=min(5.0, deadline_s))
        return self._swap(BASE, self._versions(deadline_s), deadline_s)

    def verify(self, weights: Weights, *, deadline_s: float = 60.0) -> tuple[Served, ...]:
        versions = self._versions(deadline_s)
        for url, found in versions.items():
            if found != weights.name:
                raise WeightSyncError(f"{url} serves {found}, and it should serve {weights.name}", hint="Stage and activate it.")
        digest = self._staged.digest if self._staged and self._staged.name == weights.name else ""
        return tuple(Served(engine.url, 0, weights.name, digest) for engine in self._engines)

    def drop(self, name: str, *, deadline_s: float = 30.0) -> None:
        if self._staged is not None and self._staged.name == name:
            self._staged = None

    def _versions(self, deadline_s: float) -> dict[str, str]:
        """What each engine says that it serves."""
        deadline = Deadline(deadline_s)
        what = "say what it serves"
        found = at_once(self._engines, lambda one: weight_version(one, timeout_s=deadline.left()), what=what, deadline=deadline)
        return {engine.url: version for engine, version in zip(self._engines, found, strict=True)}

    def _swap(self, name: str, previous: Mapping[str, str], deadline_s: float) -> Swap:
        deadline = Deadline(deadline_s)

        def load(engine: Engine, which: str) -> None:
            folder = self._folders.get(which)
            if folder is None:
                raise WeightSyncError(f"where {which} lies is not known", hint="Restart the engine: it comes back with the head.")
            rpc(engine, "reload_weights", timeout_s=deadline.left(), weights_path=str(folder))
            with contextlib.suppress(ReefError):  # an engine with our worker takes note; one without has no such method
                rpc(engine, "reef_adopt", timeout_s=deadline.left(), name=which, folder=str(folder))

        return swap(
            self._engines,
            name=name,
            previous=previous,
            load=lambda engine: load(engine, name),
            undo=lambda engine: load(engine, previous[engine.url]),
            deadline_s=deadline_s,
        )
