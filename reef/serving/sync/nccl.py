"""From GPU to GPU, over NVLink or InfiniBand, with the communicator that vLLM brings for weight transfer.

Each rank needs a GPU of its own: NCCL refuses two ranks on one. A bucket goes through device memory on a stream of its own, so that what
serves goes on, and is staged on the host as over gloo: nothing that an engine answers with is touched before it is activated.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from reef.serving.sync.channel import BUCKET_BYTES, Channel

if TYPE_CHECKING:
    import torch

POLL_S = 0.0005


class NcclChannel(Channel):
    """vLLM's PyNcclCommunicator over the transfer's own store, on the current device of the calling thread."""

    def __init__(self, store: Any, *, rank: int, world: int, timeout_s: float) -> None:
        import torch
        from torch.distributed import PrefixStore
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup
        from vllm.utils.nccl import unpinned_nccl_env

        if not torch.cuda.is_available():
            raise RuntimeError("NCCL needs a GPU on every rank; use gloo here")
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._root = rank == 0
        group = StatelessProcessGroup(rank=rank, world_size=world, store=PrefixStore("nccl", store))
        self._stream = torch.cuda.Stream(self._device)
        self._bucket_N = torch.empty(BUCKET_BYTES, dtype=torch.uint8, device=self._device)
        self._done = torch.cuda.Event()
        with unpinned_nccl_env():  # what a worker sets for vLLM's own communicators is not set here, and ranks that differ in it hang
            self._communicator = PyNcclCommunicator(group, device=self._device)
        if self._communicator.disabled:
            raise RuntimeError("libnccl could not be loaded")

    def broadcast(self, bucket_N: torch.Tensor, *, timeout_s: float) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            if bucket_N.numel() > self._bucket_N.numel():
                self._bucket_N = torch.empty_like(bucket_N, device=self._device)
            device_N = self._bucket_N[: bucket_N.numel()]
            if self._root:
                device_N.copy_(bucket_N, non_blocking=True)
            self._communicator.broadcast(device_N, src=0, stream=self._stream)
            if not self._root:
                bucket_N.copy_(device_N, non_blocking=True)
            self._done.record(self._stream)
        # A broadcast that a peer never joins occupies the device for ever: it is aborted, which waiting for the event would not do.
        until = time.monotonic() + timeout_s
        while not self._done.query():
            if time.monotonic() > until:
                self.close()
                raise RuntimeError(f"a broadcast over NCCL did not end in {timeout_s:.0f} s")
            time.sleep(POLL_S)

    def close(self) -> None:
        self._communicator.destroy()
