"""Within one machine: buckets go through memory that trainer and workers share, the GPU's where they share one, else the host's.

NCCL refuses two ranks on one GPU, and gloo sends what lies beside it through the network's loopback. What shares memory takes turns: the
trainer fills the bucket, says so in the transfer's store, and waits until every rank has copied it to where it stages.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from reef.serving.sync.channel import Channel
from reef.serving.sync.receiver import BROKEN, FAILED
from reef.serving.sync.shared import DeviceMemory, HostMemory, Place, Shared, gpus_here

if TYPE_CHECKING:
    import torch

POLL_S = 0.0005
KINDS: dict[str, type[DeviceMemory] | type[HostMemory]] = {"device": DeviceMemory, "host": HostMemory}
NONE = "none"


class IpcChannel(Channel):
    """One end; the trainer's is rank 0.

    Args:
        store: the transfer's.
        bucket_bytes: the largest bucket.
        timeout_s: bound on agreeing on a memory that all see.

    Raises:
        RuntimeError: there is none, or some rank did not say so in time.
    """

    def __init__(self, store: Any, *, rank: int, world: int, bucket_bytes: int, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._others = range(1, world) if rank == 0 else range(0)
        self._watched: dict[int, int] = {}
        """Of the trainer: by rank, what tells whether its process lives."""
        self._number = 0
        until = time.monotonic() + timeout_s
        try:
            self._memory = self._offer(bucket_bytes, until) if rank == 0 else self._take(until)
        except BaseException:
            self._forget()
            raise

    def broadcast(self, bucket_N: torch.Tensor, *, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        number, self._number = self._number, self._number + 1
        if self._rank == 0:
            self._memory.write(bucket_N, until=until)
            self._store.set(f"ipc/full/{number}", "")
            self._wait([f"ipc/{rank}/took/{number}" for rank in self._others], until, what="take a bucket")
        else:
            self._wait([f"ipc/full/{number}"], until, what="fill a bucket")
            self._memory.read(bucket_N, until=until)
            self._store.set(f"ipc/{self._rank}/took/{number}", "")

    def close(self) -> None:
        self._forget()
        self._memory.close()

    def _offer(self, size: int, until: float) -> Shared:
        """The trainer's part of the agreement: one kind of memory after the other, until every rank can open one."""
        self._wait([f"ipc/{rank}/place" for rank in self._others], until, what="say where it runs")
        places = {rank: Place.parse(self._store.get(f"ipc/{rank}/place").decode()) for rank in self._others}
        self._watch(places)
        reasons = []
        number = 0
        for number, kind in enumerate(_possible(list(places.values())), start=1):
            try:
                memory, told = KINDS[kind].make(size, readers=len(self._others))
            except (RuntimeError, OSError) as error:
                reasons.append(f"{kind}: {error}")
                self._tell(number, [kind] * len(self._others))
                continue
            self._tell(number, [f"{kind} {handle}" for handle in told])
            self._wait([f"ipc/{rank}/answer/{number}" for rank in self._others], until, what=f"open the memory of the {kind}")
            refused = {rank: said for rank in self._others if (said := self._store.get(f"ipc/{rank}/answer/{number}").decode())}
            self._store.set(f"ipc/settled/{number}", "no" if refused else "yes")
            if not refused:
                return memory
            memory.close()
            reasons += [f"{kind}, rank {rank}: {said}" for rank, said in refused.items()]
        why = f"no memory that all of them see, so use gloo: {'; '.join(reasons) or 'they share neither a GPU nor a machine'}"
        self._tell(number + 1, [f"{NONE} {why}"] * len(self._others))
        raise RuntimeError(why)

    def _tell(self, number: int, offers: list[str]) -> None:
        for rank, offer in zip(self._others, offers, strict=True):
            self._store.set(f"ipc/{rank}/offer/{number}", offer)

    def _take(self, until: float) -> Shared:
        """A worker's part of it."""
        self._store.set(f"ipc/{self._rank}/place", Place.here().text())
        number = 0
        while True:
            number += 1
            self._wait([f"ipc/{self._rank}/offer/{number}"], until, what="offer a memory")
            kind, _, told = self._store.get(f"ipc/{self._rank}/offer/{number}").decode().partition(" ")
            if kind == NONE:
                raise RuntimeError(told)
            if not told:
                continue
            memory, reason = None, ""
            try:
                memory = KINDS[kind].find(told)
            except (RuntimeError, OSError, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"[:300]
            self._store.set(f"ipc/{self._rank}/answer/{number}", reason)
            self._wait([f"ipc/settled/{number}"], until, what="settle on a memory")
            settled = self._store.get(f"ipc/settled/{number}").decode() == "yes"
            if memory is not None and settled:
                return memory
            if memory is not None:
                memory.close()

    def _wait(self, keys: list[str], until: float, *, what: str) -> None:
        """Until all keys are there. A trainer that ended takes the store with it, and then this raises at once."""
        if self._rank:
            try:  # one call, as a thread that looks again and again takes the interpreter from the engine's own
                self._store.wait(keys, timedelta(seconds=max(0.001, until - time.monotonic())))
            except RuntimeError as error:
                raise RuntimeError(f"waited in vain for the trainer to {what}: {str(error).splitlines()[0]}") from None
            return
        waiting = keys
        while waiting := [key for key in waiting if not self._store.check([key])]:
            for rank in self._others:
                if self._store.check([f"{rank}/{FAILED}"]) or self._store.check([f"{rank}/{BROKEN}"]):
                    raise RuntimeError(f"rank {rank} gave up")
            for rank in self._dead():
                raise RuntimeError(f"the process of rank {rank} has ended")
            if time.monotonic() > until:
                raise RuntimeError(f"waited in vain for all ranks to {what}")
            time.sleep(POLL_S)

    def _watch(self, places: dict[int, Place]) -> None:
        """A worker that is killed says nothing, and a connection that would break there is none."""
        machine = Place.here().machine
        for rank, place in places.items():
            if place.machine == machine:
                with contextlib.suppress(OSError):  # it is gone by now: then the deadline ends it
                    self._watched[rank] = os.pidfd_open(place.pid)

    def _dead(self) -> Iterator[int]:
        if not self._watched:
            return
        poll = select.poll()
        for fd in self._watched.values():
            poll.register(fd, select.POLLIN)
        ended = {fd for fd, _ in poll.poll(0)}
        yield from (rank for rank, fd in self._watched.items() if fd in ended)

    def _forget(self) -> None:
        for fd in self._watched.values():
            os.close(fd)
        self._watched = {}


def _possible(places: list[Place]) -> list[str]:
    """Which kinds of memory this process may share with others that run there. Makes their GPU the current one where that is it."""
    found = []
    gpus, seen = {place.gpu for place in places}, gpus_here()
    if len(gpus) == 1 and (gpu := gpus.pop()) in seen:
        import torch

        torch.cuda.set_device(seen.index(gpu))
        found.append("device")
    if {place.machine for place in places} == {Place.here().machine}:
        found.append("host")
    return found
