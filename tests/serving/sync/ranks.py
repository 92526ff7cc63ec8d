"""Real processes for the ranks of a transfer, forked from one that has torch loaded already."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from reef.serving.sync.channel import Channel, Ticket
from reef.serving.sync.sender import send

BUCKET = 4096
AT = 20
"""The bucket at which a process gets its signal."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch.distributed",
        "safetensors.torch",
        "reef.serving.sync.sender",
        "reef.serving.sync.gloo",
        "reef.serving.sync.ipc",
        __name__,
    ]
)


class Rank:
    """A process that takes part as one rank; it gets a signal at a certain bucket, or is another user's, if it is given one."""

    def __init__(self, rank: int, *, base: Path, number: int, user: int = 0) -> None:
        self.name = f"worker {rank}"
        self._pipe, other = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_take_part, args=(other, rank, str(base), number, user), daemon=True)
        self.process.start()
        other.close()
        assert self._pipe.recv() == "ready"

    def call(self, ticket: Ticket) -> None:
        self._pipe.send(ticket.text())

    def result(self) -> str:
        assert self._pipe.poll(30), "the rank says nothing"
        return str(self._pipe.recv())

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _take_part(pipe: Connection, rank: int, base: str, number: int, user: int) -> None:
    from reef.serving.sync.held import Version, read_folder
    from reef.serving.sync.receiver import receive

    _signal_at(number)
    if user:
        os.setuid(user)
    pipe.send("ready")
    ticket = Ticket.parse(pipe.recv())
    try:
        version = receive(ticket, rank=rank, serving=Version("base", read_folder(Path(base))) if Path(base).is_dir() else None)
    except (RuntimeError, ValueError) as error:
        pipe.send(f"failed: {error}")
    else:
        pipe.send(version.digest())


def trainer_that_dies(folder: Path, rank: Rank, *, channel: str) -> None:
    """Send a folder to a rank from a process that is killed in the middle of it."""
    pipe, other = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_send, args=(other, str(folder), channel), daemon=True)
    process.start()
    rank.call(Ticket.parse(pipe.recv()))
    process.join(30)
    assert process.exitcode == -signal.SIGKILL


def _send(pipe: Connection, folder: str, channel: str) -> None:
    from reef.serving.sync.held import Version, read_folder

    _signal_at(signal.SIGKILL)
    version = Version("new", read_folder(Path(folder)))
    send(
        version,
        ranks=["worker 1"],
        invite=lambda ticket: pipe.send(ticket.text()),
        channel=channel,
        host="127.0.0.1",
        deadline_s=30,
        bucket_bytes=BUCKET,
    )


def _signal_at(number: int) -> None:
    from reef.serving.sync import gloo, ipc

    if number:
        gloo.GlooChannel = _signalled(gloo.GlooChannel, number)  # type: ignore[misc]
        ipc.IpcChannel = _signalled(ipc.IpcChannel, number)  # type: ignore[misc]


def _signalled(channel: type[Channel], number: int) -> Any:
    class Signalled(channel):  # type: ignore[misc, valid-type]
        sent = 0

        def broadcast(self, bucket_N: Any, *, timeout_s: float) -> None:
            self.sent += 1
            if self.sent == AT:
                os.kill(os.getpid(), number)
            super().broadcast(bucket_N, timeout_s=timeout_s)

    return Signalled


@contextlib.contextmanager
def ranks(count: int, *, base: Path, last_gets: int = 0, last_is: int = 0) -> Iterator[list[Rank]]:
    """So many ranks; the last one gets a signal in the middle of the transfer, or is another user's."""
    started: list[Rank] = []
    try:
        for number in range(1, count + 1):
            last = number == count
            started.append(Rank(number, base=base, number=last_gets if last else 0, user=last_is if last else 0))
        yield started
    finally:
        for rank in started:
            rank.end()


def trainer_of_an_engine_that_dies(url: str, folder: Path, *, name: str) -> None:
    """Stage a folder in an engine from a process that is killed in the middle of it."""
    process = CONTEXT.Process(target=_stage, args=(url, str(folder), name), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def _stage(url: str, folder: str, name: str) -> None:
    from reef.serving.engine.client import EngineClient
    from reef.serving.sync.interface import weights_in
    from reef.serving.sync.transfer import TransferSync

    _signal_at(signal.SIGKILL)
    TransferSync([EngineClient(url)], channel="gloo", bucket_bytes=BUCKET).stage(weights_in(Path(folder), name=name))
