"""How bytes get from the trainer to all workers: in buckets, each broadcast to all ranks; and what the two ends agree on beforehand.

The trainer is rank 0. A transfer has a store (torch's TCPStore) that lives in the trainer: the manifest is in it, and each rank writes
there how far it came, so that one which never answers has a name. Every transfer has a store and a group of its own: a trainer that dies
takes nothing with it that the next transfer needs.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 64 << 20
GRACE_S = 2.0
"""By how much a worker gives up earlier than the trainer, so that one which waits for others can say so; at most a fifth of the time."""


class Channel(ABC):
    """One end of a transfer's group."""

    @abstractmethod
    def broadcast(self, bucket_N: torch.Tensor, *, timeout_s: float) -> None:
        """Send the bytes if this is rank 0, else receive them; the buffer is on the host.

        Raises:
            RuntimeError: it failed, or took too long. The channel is of no use any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a worker is told when it is called to a transfer."""

    transfer: str
    name: str
    """Of the weights."""
    channel: str
    host: str
    """Of the store."""
    port: int
    first_rank: int
    """The rank of the engine's first worker."""
    world: int
    """All ranks, the trainer's included."""
    deadline_s: float
    bucket_bytes: int = BUCKET_BYTES

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Ticket:
        """What :meth:`text` gave."""
        return cls(**json.loads(text))

    @property
    def patience_s(self) -> float:
        """How long a worker tries."""
        return self.deadline_s - min(GRACE_S, self.deadline_s / 5)


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a manifest."""

    name: str
    dtype: str
    """As in ``torch.<dtype>``."""
    shape: tuple[int, ...]
    digest: str

    def size_bytes(self) -> int:
        """What it takes."""
        import torch

        return prod(self.shape) * int(getattr(torch, self.dtype).itemsize)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is sent, in the order in which it is sent, and what a worker must have when all is in its place."""

    entries: tuple[Entry, ...]
    digest: str
    """Over all tensors of the version, sent or not."""

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """What :meth:`text` gave."""
        found = json.loads(text)
        entries = (Entry(**{**entry, "shape": tuple(entry["shape"])}) for entry in found["entries"])
        return cls(tuple(entries), found["digest"])


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor within a bucket, in bytes."""

    tensor: int
    """Its place in the manifest."""
    start: int
    at: int
    """Where in the bucket."""
    length: int


def buckets(sizes: Sequence[int], *, bucket_bytes: int) -> Iterator[list[Piece]]:
    """Cut a row of tensors into buckets that are full but for the last. Both ends cut alike."""
    pieces: list[Piece] = []
    filled = 0
    for number, size in enumerate(sizes):
        start = 0
        while start < size:
            length = min(size - start, bucket_bytes - filled)
            pieces.append(Piece(number, start, filled, length))
            start += length
            filled += length
            if filled == bucket_bytes:
                yield pieces
                pieces, filled = [], 0
    if pieces:
        yield pieces


def connect(host: str, port: int, *, serve: bool, timeout_s: float) -> Any:
    """The store of a transfer: the trainer serves it, on a port that is free if 0 is asked for.

    Raises:
        RuntimeError: nobody serves it within the time.
    """
    from torch.distributed import TCPStore

    return TCPStore(host, port, None, serve, timeout=timedelta(seconds=max(1.0, timeout_s)), wait_for_workers=False)


def open_channel(kind: str, *, store: Any, rank: int, world: int, host: str, timeout_s: float, bucket_bytes: int = BUCKET_BYTES) -> Channel:
    """Join a transfer's group. Returns when all ranks did.

    Raises:
        RuntimeError: some did not come within the time.
        ValueError: there is no such kind.
    """
    if kind == "gloo":
        from reef.serving.sync.gloo import GlooChannel

        return GlooChannel(store, rank=rank, world=world, host=host, timeout_s=timeout_s)
    if kind == "nccl":
        from reef.serving.sync.nccl import NcclChannel

        return NcclChannel(store, rank=rank, world=world, timeout_s=timeout_s)
    if kind == "ipc":
        from reef.serving.sync.ipc import IpcChannel

        return IpcChannel(store, rank=rank, world=world, bucket_bytes=bucket_bytes, timeout_s=timeout_s)
    raise ValueError(f"no channel {kind!r}: gloo, nccl or ipc")
