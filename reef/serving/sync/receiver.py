"""The worker's end of a transfer: a thread that receives into host memory while the engine serves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reef.serving.sync.channel import Manifest, Ticket, buckets, connect, open_channel
from reef.serving.sync.held import Version, tensor_digest, unlike

if TYPE_CHECKING:
    import torch

MANIFEST = "manifest"
JOINED, READY, AT, STAGED = "joined", "ready", "at", "staged"
"""What a rank writes into the store: what it has, that it takes what is to come, how many buckets came, what it has now."""
FAILED, BROKEN = "failed", "broken"
"""And how else it may end: it cannot take what came, or the others left it alone."""


def receive(ticket: Ticket, *, rank: int, serving: Version | None) -> Version:
    """Take part in a transfer as one rank; returns the version that is staged, which shares what did not change with the one that serves.

    Raises:
        RuntimeError: the transfer broke off or took too long, with what was being waited for.
        ValueError: what came is not what the trainer said, or does not fit this model.
    """
    until = time.monotonic() + ticket.patience_s
    store = connect(ticket.host, ticket.port, serve=False, timeout_s=ticket.patience_s)
    try:
        # A rank that does not know what it serves asks for everything.
        store.set(f"{rank}/{JOINED}", json.dumps(serving.digests() if serving else None))
        manifest = Manifest.parse(store.get(MANIFEST).decode())
        if serving and (problem := unlike(serving, ((entry.name, entry.dtype, entry.shape) for entry in manifest.entries))):
            raise ValueError(problem)
        store.set(f"{rank}/{READY}", "")
        tensors = _receive_tensors(ticket, manifest, store=store, rank=rank, until=until) if manifest.entries else {}
        digests = {}
        for entry in manifest.entries:
            digests[entry.name] = tensor_digest(tensors[entry.name])
            if digests[entry.name] != entry.digest:
                raise ValueError(f"{entry.name} did not arrive as it was sent")
        version = serving.with_changes(ticket.name, tensors, digests) if serving else Version(ticket.name, tensors, digests)
        if version.digest() != manifest.digest:
            raise ValueError("the tensors that were not sent are others than the trainer's")
        store.set(f"{rank}/{STAGED}", version.digest())
        return version
    except Exception as error:
        _report(store, rank, error)
        raise


def _receive_tensors(ticket: Ticket, manifest: Manifest, *, store: Any, rank: int, until: float) -> dict[str, torch.Tensor]:
    """Everything of the manifest, each tensor in memory of its own: so one that lives longer than the others keeps nothing else alive."""
    import torch

    tensors = [torch.empty(entry.shape, dtype=getattr(torch, entry.dtype)) for entry in manifest.entries]
    flat = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
    channel = open_channel(
        ticket.channel,
        store=store,
        rank=rank,
        world=ticket.world,
        host=ticket.host,
        timeout_s=_left(until),
        bucket_bytes=ticket.bucket_bytes,
    )
    try:
        bucket_N = torch.empty(min(ticket.bucket_bytes, sum(len(one) for one in flat)), dtype=torch.uint8)
        for number, pieces in enumerate(buckets([len(one) for one in flat], bucket_bytes=ticket.bucket_bytes)):
            filled = pieces[-1].at + pieces[-1].length
            channel.broadcast(bucket_N[:filled], timeout_s=_left(until))
            for piece in pieces:
                flat[piece.tensor][piece.start : piece.start + piece.length] = bucket_N[piece.at : piece.at + piece.length]
            store.set(f"{rank}/{AT}", str(number + 1))
    finally:
        channel.close()
    return {entry.name: tensor for entry, tensor in zip(manifest.entries, tensors, strict=True)}


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise RuntimeError("the deadline of the transfer has passed")
    return left


def _report(store: Any, rank: int, error: Exception) -> None:
    """Tell the trainer why, if it is still there to be told."""
    try:
        kind = BROKEN if isinstance(error, RuntimeError) else FAILED
        store.set(f"{rank}/{kind}", f"{type(error).__name__}: {error}"[:500])
    except RuntimeError:  # the trainer is what went
        return


class Receiver:
    """The transfer that a worker takes part in, on a thread of its own. A newer one takes its place; the older ends by its deadline."""

    def __init__(self, ticket: Ticket, *, rank: int, serving: Callable[[], Version | None], prepare: Callable[[], None]) -> None:
        self.name = ticket.name
        self.version: Version | None = None
        self.error = ""
        self._ticket, self._rank, self._serving, self._prepare = ticket, rank, serving, prepare
        self._thread = threading.Thread(target=self._run, name=f"reef-receive-{ticket.transfer}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._prepare()
            self.version = receive(self._ticket, rank=self._rank, serving=self._serving())
        except Exception as error:  # noqa: BLE001 - kept for whoever asks; a thread has nobody to raise it to
            self.error = f"{type(error).__name__}: {error}"

    @property
    def busy(self) -> bool:
        """Whether it still receives."""
        return self._thread.is_alive()
