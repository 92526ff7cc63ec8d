"""Over TCP, from host memory to host memory: for engines without a GPU, and for those on machines that NCCL does not join."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from reef.serving.sync.channel import Channel

if TYPE_CHECKING:
    import torch


class GlooChannel(Channel):
    """A process group of its own: torch's default group, which the trainer may use for its ranks, is not touched."""

    def __init__(self, store: Any, *, rank: int, world: int, host: str, timeout_s: float) -> None:
        from torch.distributed import PrefixStore, ProcessGroupGloo

        options = ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        # Left to itself gloo takes the address that this machine's name resolves to, which inside a container may be reached by nobody.
        options._devices = [ProcessGroupGloo.create_device(hostname=own_address(host))]
        self._group = ProcessGroupGloo(PrefixStore("gloo", store), rank, world, options)

    def broadcast(self, bucket_N: torch.Tensor, *, timeout_s: float) -> None:
        self._group.broadcast(bucket_N, 0).wait(timedelta(seconds=timeout_s))

    def close(self) -> None:
        del self._group


def own_address(host: str) -> str:
    """The address of this machine that a host sees: nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
