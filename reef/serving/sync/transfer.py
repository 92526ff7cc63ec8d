"""Full weights sent to all workers, for engines that were started with ours: gloo, NCCL and shared memory differ in their channel alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reef.errors import EngineError, WeightSyncError, WeightSyncTimeout
from reef.serving.sync.channel import BUCKET_BYTES, Ticket
from reef.serving.sync.engines import Deadline, Engine, at_once, rpc
from reef.serving.sync.held import Version, read_folder
from reef.serving.sync.interface import Served, Staged, Swap, Weights, WeightSync
from reef.serving.sync.names import BASE
from reef.serving.sync.sender import send
from reef.serving.sync.swapping import resume, swap, weight_version

if TYPE_CHECKING:
    import torch

POLL_S = 0.02


class TransferSync(WeightSync):
    """Sends from this process, rank 0, to all workers of all engines. Which versions there are is kept by the workers: this may crash and
    come back at any time.

    Args:
        engines: the replicas.
        channel: ``gloo``, ``nccl`` or ``ipc``.
        host: this machine's address, as the workers reach it.
        bucket_bytes: how much is sent at once.
    """

    def __init__(self, engines: Sequence[Engine], *, channel: str, host: str = "127.0.0.1", bucket_bytes: int = BUCKET_BYTES) -> None:
        self._engines = tuple(engines)
        self._channel = channel
        self._host = host
        self._bucket_bytes = bucket_bytes
        self._digests: dict[Path, str] = {}
        """Of folders that were read: they never change."""

    def stage(self, weights: Weights, *, deadline_s: float = 600.0) -> Staged:
        staged = self.stage_tensors(weights.name, _read(weights), deadline_s=deadline_s)
        self._digests[weights.folder] = staged.digest
        return staged

    def stage_tensors(self, name: str, tensors: Mapping[str, torch.Tensor], *, deadline_s: float = 600.0) -> Staged:
        """As :meth:`stage`, with tensors that are in memory: of a trainer that calls this itself."""
        deadline = Deadline(deadline_s)
        started = time.monotonic()
        resume(self._engines, deadline_s=min(5.0, deadline_s))  # if a sync before this one died in its pause
        version = Version(name, dict(tensors))
        version.digests()
        sizes = at_once(self._engines, lambda engine: _world_size(engine, deadline), what="say how many workers it has", deadline=deadline)
        first = {engine.url: 1 + sum(sizes[:place]) for place, engine in enumerate(self._engines)}
        ranks = [f"worker {worker} of {engine.url}" for engine, size in zip(self._engines, sizes, strict=True) for worker in range(size)]

        def invite(ticket: Ticket) -> None:
            at_once(
                self._engines,
                lambda engine: rpc(
                    engine, "reef_receive", timeout_s=deadline.left(), ticket=replace(ticket, first_rank=first[engine.url]).text()
                ),
                what=f"take part in the transfer of {name}, as rank {', '.join(f'{first[e.url]} ({e.url})' for e in self._engines)}",
                deadline=deadline,
            )

        count, size = send(
            version,
            ranks=ranks,
            invite=invite,
            channel=self._channel,
            host=self._host,
            deadline_s=deadline.left(),
            bucket_bytes=self._bucket_bytes,
        )
        self._await_staged(name, deadline)
        return Staged(name, version.digest(), tensors=count, size_bytes=size, seconds=time.monotonic() - started)

    def activate(self, weights: Weights, *, deadline_s: float = 60.0) -> Swap:
        deadline = Deadline(deadline_s)
        workers = self._workers(deadline)
        for engine, worker in workers:
            if worker["staged"] != weights.name and worker["serving"] != weights.name:
                raise WeightSyncError(
                    f"{weights.name} is not staged on worker {worker['worker']} of {engine.url}", hint="Call stage first."
                )
        return self._swap(weights.name, workers=workers, deadline=deadline)

    def roll_back(self, *, deadline_s: float = 60.0) -> Swap:
        deadline = Deadline(deadline_s)
        workers = self._workers(deadline)
        parents = {str(worker["parent"]) for _, worker in workers}
        if len(parents) != 1 or "" in parents:
            raise WeightSyncError("nothing served before on every worker", hint="Stage and activate the release that should serve.")
        return self._swap(parents.pop(), workers=workers, deadline=deadline)

    def back_to_base(self, *, deadline_s: float = 60.0) -> Swap:
        """Make what the engines were started with answer again.

        Raises:
            WeightSyncError: an engine could not take it.
        """
        deadline = Deadline(deadline_s)
        resume(self._engines, deadline_s=min(5.0, deadline_s))
        return self._swap(BASE, workers=self._workers(deadline), deadline=deadline)

    def verify(self, weights: Weights, *, deadline_s: float = 60.0) -> tuple[Served, ...]:
        deadline = Deadline(deadline_s)
        wanted = self._digests.get(weights.folder) or Version(weights.name, _read(weights)).digest()
        names = at_once(
            self._engines, lambda one: weight_version(one, timeout_s=deadline.left()), what="say what it serves", deadline=deadline
        )
        for engine, name in zip(self._engines, names, strict=True):
            if name != weights.name:
                raise WeightSyncError(f"{engine.url} serves {name}, and it should serve {weights.name}", hint="Stage and activate it.")
        served = []
        for engine, worker in self._workers(deadline, digests=True):
            where = f"worker {worker['worker']} of {engine.url}"
            if worker.get("digest") != wanted:
                raise WeightSyncError(f"{where} serves other bytes than those of {weights.name}", hint="Stage and activate it.")
            if worker.get("unlike"):
                raise WeightSyncError(f"{where} holds {weights.name}, and its device has another {worker['unlike'][0]}", hint="Restart it.")
            served.append(Served(engine.url, int(worker["worker"]), weights.name, wanted))
        return tuple(served)

    def drop(self, name: str, *, deadline_s: float = 30.0) -> None:
        deadline = Deadline(deadline_s)
        at_once(self._engines, lambda one: rpc(one, "reef_drop", timeout_s=deadline.left(), name=name), what="drop", deadline=deadline)

    def _swap(self, name: str, *, workers: Sequence[tuple[Engine, Mapping[str, Any]]], deadline: Deadline) -> Swap:
        previous = {engine.url: str(worker["serving"]) for engine, worker in workers}
        return swap(
            self._engines,
            name=name,
            previous=previous,
            load=lambda engine: _load(engine, name, deadline),
            undo=lambda engine: _load(engine, previous[engine.url], Deadline(deadline.seconds)),
            deadline_s=deadline.left(),
        )

    def _workers(self, deadline: Deadline, *, digests: bool = False) -> list[tuple[Engine, dict[str, Any]]]:
        """What every worker says; with digests when none is still making them."""
        asked = {"digests": "yes"} if digests else {}

        def ask(engine: Engine) -> list[dict[str, Any]]:
            return rpc(engine, "reef_versions", timeout_s=deadline.left(), **asked)

        while True:
            told = at_once(self._engines, ask, what="say what its workers hold", deadline=deadline)
            workers = [(engine, worker) for engine, found in zip(self._engines, told, strict=True) for worker in found]
            if not digests or all("digest" in worker for _, worker in workers):
                return workers
            if deadline.passed:
                raise WeightSyncTimeout(f"{workers[0][0].url} did not hash its weights within {deadline.seconds:g} s")
            time.sleep(POLL_S)

    def _await_staged(self, name: str, deadline: Deadline) -> None:
        """Until each worker's thread has put its version where an activation finds it: moments after it told the trainer."""
        while waiting := [(engine, worker) for engine, worker in self._workers(deadline) if worker["staged"] != name]:
            engine, worker = waiting[0]
            if deadline.passed or not worker["busy"]:
                raise WeightSyncError(f"worker {worker['worker']} of {engine.url} lost {name} after it was sent", hint="Stage it again.")
            time.sleep(POLL_S)


def _read(weights: Weights) -> dict[str, torch.Tensor]:
    try:
        return read_folder(weights.folder)
    except OSError as error:
        raise WeightSyncError(f"the weights of {weights.name} cannot be read: {error}", hint="Is it a folder of safetensors?") from None


def _load(engine: Engine, name: str, deadline: Deadline) -> None:
    """vLLM's own order of calls; the session is open for this moment alone. What may fail does so in the second."""
    try:
        engine.ask("POST", "/start_weight_update", timeout_s=deadline.left())
    except EngineError:
        _close_session(engine, deadline)  # as one is open still after a sync that died between start and finish
        engine.ask("POST", "/start_weight_update", timeout_s=deadline.left())
    engine.ask("POST", "/update_weights", {"update_info": {"name": name}}, timeout_s=deadline.left())
    try:
        engine.ask("POST", "/finish_weight_update", timeout_s=deadline.left())
    except EngineError:
        _close_session(engine, deadline)
        raise


def _close_session(engine: Engine, deadline: Deadline) -> None:
    """An update that fails is the only call that closes a session without changing anything."""
    with contextlib.suppress(EngineError):
        engine.ask("POST", "/update_weights", {"update_info": {"name": ""}}, timeout_s=deadline.left())


def _world_size(engine: Engine, deadline: Deadline) -> int:
    return int(engine.ask("GET", "/get_world_size", timeout_s=deadline.left()).get("world_size", 1))
