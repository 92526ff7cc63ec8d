"""The trainer's end of a transfer: rank 0 sends what differs to all others, and says which of them failed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reef.errors import WeightSyncError, WeightSyncTimeout
from reef.serving.sync.channel import BUCKET_BYTES, Entry, Manifest, Ticket, buckets, connect, open_channel
from reef.serving.sync.engines import Deadline
from reef.serving.sync.held import Version, tensor_bytes
from reef.serving.sync.receiver import AT, BROKEN, FAILED, JOINED, MANIFEST, READY, STAGED

if TYPE_CHECKING:
    import torch

POLL_S = 0.005
LAST_WORDS_S = 1.0
"""How long the others have to say why, once the trainer's own end of a transfer broke."""
HINT = "Old weights go on serving. See the log of the engine that is named, then stage again."


def send(
    version: Version,
    *,
    ranks: Sequence[str],
    invite: Callable[[Ticket], object],
    channel: str,
    host: str,
    deadline_s: float,
    bucket_bytes: int = BUCKET_BYTES,
) -> tuple[int, int]:
    """Send a version to every rank; returns when each has all of it and has proved it.

    Args:
        ranks: what to call rank 1, 2 … in errors.
        invite: gives the ticket to all of them, and comes back at once.
        channel: ``gloo``, ``nccl`` or ``ipc``.
        host: this machine's address, as the workers reach it.
        deadline_s: bound on all of it.

    Returns:
        How many tensors and how many bytes had to go.

    Raises:
        WeightSyncError: some rank failed, and says why.
        WeightSyncTimeout: some rank did not answer; the message names it.
    """
    deadline = Deadline(deadline_s)
    digests = version.digests()
    try:
        store = connect(host, 0, serve=True, timeout_s=deadline.left())
    except RuntimeError as error:
        raise WeightSyncError(f"no store for a transfer on {host}: {error}", hint="Is this one of this machine's addresses?") from None
    followers = _Ranks(store, ranks, deadline)
    ticket = Ticket(
        transfer=f"{time.time_ns():x}", name=version.name, channel=channel, host=host, port=store.port, first_rank=1,
        world=len(ranks) + 1, deadline_s=deadline.left(), bucket_bytes=bucket_bytes,
    )  # fmt: skip
    invite(ticket)
    followers.wait(JOINED, what="come to the transfer")
    names = _to_send(version, [json.loads(text) for text in followers.read(JOINED)], ranks=ranks)
    entries = tuple(
        Entry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), digests[name])
        for name in names
        if (tensor := version.tensors[name]) is not None
    )
    store.set(MANIFEST, Manifest(entries, version.digest()).text())
    followers.wait(READY, what="agree to the manifest")  # one that refuses would be waited for in the group
    if entries:
        _send_tensors([version.tensors[name] for name in names], ticket, store=store, followers=followers, deadline=deadline)
    followers.wait(STAGED, what="take what was sent")
    return len(entries), sum(entry.size_bytes() for entry in entries)


def _to_send(version: Version, held: Sequence[Mapping[str, str] | None], *, ranks: Sequence[str]) -> list[str]:
    """What at least one rank has otherwise, in the order of the file."""
    digests = version.digests()
    for has, rank in zip(held, ranks, strict=True):
        if has is not None and (missing := has.keys() - digests.keys()):
            raise WeightSyncError(
                f"{version.name} lacks {min(missing)}, which {rank} has, and {len(missing) - 1} more",
                hint="Send all tensors.",
            )
    return [name for name in version.tensors if any(has is None or has.get(name) != digests[name] for has in held)]


def _send_tensors(tensors: Sequence[torch.Tensor], ticket: Ticket, *, store: Any, followers: _Ranks, deadline: Deadline) -> None:
    import torch

    try:
        channel = open_channel(
            ticket.channel, store=store, rank=0, world=ticket.world, host=ticket.host, timeout_s=deadline.left(),
            bucket_bytes=ticket.bucket_bytes,
        )  # fmt: skip
        try:
            flat = [torch.frombuffer(tensor_bytes(tensor), dtype=torch.uint8) for tensor in tensors]
            bucket_N = torch.empty(min(ticket.bucket_bytes, sum(len(one) for one in flat)), dtype=torch.uint8)
            for pieces in buckets([len(one) for one in flat], bucket_bytes=ticket.bucket_bytes):
                for piece in pieces:
                    bucket_N[piece.at : piece.at + piece.length] = flat[piece.tensor][piece.start : piece.start + piece.length]
                channel.broadcast(bucket_N[: pieces[-1].at + pieces[-1].length], timeout_s=deadline.left())
            followers.wait(STAGED, what="take what was sent")  # before this end closes: a rank may still be at its last bucket
        finally:
            channel.close()
    except (RuntimeError, ValueError) as error:
        if isinstance(error, WeightSyncError):
            raise
        raise followers.blame(str(error).splitlines()[0]) from error


class _Ranks:
    """What the other ranks wrote into the store."""

    def __init__(self, store: Any, names: Sequence[str], deadline: Deadline) -> None:
        self._store = store
        self._names = dict(enumerate(names, start=1))
        self._deadline = deadline

    def wait(self, step: str, *, what: str) -> None:
        """Until all ranks have come to a step.

        Raises:
            WeightSyncError: one has failed.
            WeightSyncTimeout: one has not come to it within the deadline.
        """
        waiting = dict(self._names)
        while True:
            waiting = {rank: name for rank, name in waiting.items() if not self._has(rank, step)}
            if not waiting:
                return
            if said := self._said(FAILED):
                raise WeightSyncError(said, hint=HINT)
            if any(self._has(rank, BROKEN) for rank in self._names):
                raise self.blame("the transfer broke off")
            if self._deadline.passed:
                raise WeightSyncTimeout(f"{self._told(waiting)} did not {what} within {self._deadline.seconds:g} s", hint=HINT)
            time.sleep(POLL_S)

    def read(self, step: str) -> list[str]:
        """What each rank wrote."""
        return [self._store.get(f"{rank}/{step}").decode() for rank in self._names]

    def blame(self, reason: str) -> WeightSyncError:
        """The error for a transfer that broke: whoever could not take it, else whoever says nothing, else whoever was left behind."""
        until = time.monotonic() + LAST_WORDS_S
        silent = dict(self._names)
        while silent and time.monotonic() < until:
            silent = {rank: name for rank, name in silent.items() if not any(self._has(rank, end) for end in (FAILED, BROKEN, STAGED))}
            time.sleep(POLL_S)
        if said := self._said(FAILED):
            return WeightSyncError(said, hint=HINT)
        if not silent:
            return WeightSyncError(self._said(BROKEN) or reason, hint=HINT)
        if len(silent) == len(self._names):
            reached = {rank: int(self._store.get(f"{rank}/{AT}")) if self._has(rank, AT) else 0 for rank in silent}
            silent = {rank: self._names[rank] for rank, at in reached.items() if at == min(reached.values())}
        return WeightSyncTimeout(f"{self._told(silent)} did not answer: {self._said(BROKEN) or reason}", hint=HINT)

    def _said(self, end: str) -> str:
        """Every rank that came to that end, with its reason."""
        ends = {rank: name for rank, name in self._names.items() if self._has(rank, end)}
        return "; ".join(f"{self._told({rank: name})}: {self._store.get(f'{rank}/{end}').decode()}" for rank, name in ends.items())

    def _has(self, rank: int, step: str) -> bool:
        return bool(self._store.check([f"{rank}/{step}"]))

    @staticmethod
    def _told(ranks: Mapping[int, str]) -> str:
        return ", ".join(f"rank {rank} ({name})" for rank, name in ranks.items())
