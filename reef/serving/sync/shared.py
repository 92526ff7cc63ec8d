"""A bucket in memory that two processes see: the GPU's that both compute on, or the host's.

How to find it is told as JSON. vLLM's own ``ipc`` backend sends the same arguments of ``rebuild_cuda_tensor`` pickled, and has to be told
to unpickle what comes over HTTP.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

POLL_S = 0.0005
BOOT, NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
ARGUMENTS = (
    "tensor_cls", "tensor_size", "tensor_stride", "tensor_offset", "storage_cls", "dtype", "storage_device", "storage_handle",
    "storage_size_bytes", "storage_offset_bytes", "requires_grad", "ref_counter_handle", "ref_counter_offset", "event_handle",
    "event_sync_required",
)  # fmt: skip
"""What torch's ``rebuild_cuda_tensor`` takes, and ``reduce_tensor`` gives."""
_BYTES = ("storage_handle", "ref_counter_handle", "event_handle")
_SENT = (*_BYTES, "tensor_offset", "storage_size_bytes", "storage_offset_bytes", "ref_counter_offset", "event_sync_required")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs, as far as it matters for what it can share."""

    machine: str
    """The boot of the machine and the namespace of process ids: where both are the same, processes see each other in ``/proc``."""
    pid: int
    gpu: str
    """UUID of the GPU that it computes on; empty without one."""

    @classmethod
    def here(cls) -> Place:
        """Of this process and the current device of this thread."""
        return cls(f"{BOOT.read_text().strip()} {NAMESPACE.stat().st_ino}", os.getpid(), gpu_here())

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Place:
        """What :meth:`text` gave."""
        return cls(**json.loads(text))


class Shared(ABC):
    """Memory that another process made known."""

    @abstractmethod
    def write(self, bucket_N: torch.Tensor, *, until: float) -> None:
        """Copy from the host; returns when another process may read.

        Raises:
            RuntimeError: the device was not done with it in time.
        """

    @abstractmethod
    def read(self, bucket_N: torch.Tensor, *, until: float) -> None:
        """Copy to the host.

        Raises:
            RuntimeError: the device was not done with it in time.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


class HostMemory(Shared):
    """A file in memory that has no name, so that none is left behind by a process that is killed."""

    def __init__(self, fd: int, size: int) -> None:
        import torch

        self._fd = fd
        self._map = mmap.mmap(fd, size)
        self._bytes_N = torch.frombuffer(self._map, dtype=torch.uint8)

    @classmethod
    def make(cls, size: int, *, readers: int) -> tuple[HostMemory, list[str]]:
        """The memory, and how each of so many processes of this machine finds it."""
        fd = os.memfd_create("reef-sync", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return cls(fd, size), [json.dumps({"file": f"/proc/{os.getpid()}/fd/{fd}", "size": size})] * readers

    @classmethod
    def find(cls, told: str) -> HostMemory:
        """What another process made.

        Raises:
            OSError: it is not this user's, say.
        """
        where = json.loads(told)
        return cls(os.open(where["file"], os.O_RDWR | os.O_CLOEXEC), where["size"])

    def write(self, bucket_N: torch.Tensor, *, until: float) -> None:
        self._bytes_N[: bucket_N.numel()].copy_(bucket_N)

    def read(self, bucket_N: torch.Tensor, *, until: float) -> None:
        bucket_N.copy_(self._bytes_N[: bucket_N.numel()])

    def close(self) -> None:
        del self._bytes_N  # the mapping goes with what refers to it
        os.close(self._fd)


class DeviceMemory(Shared):
    """A piece of the GPU's memory by CUDA IPC, copied on a stream of its own: what the engine computes meanwhile does not wait for it."""

    def __init__(self, device_N: torch.Tensor) -> None:
        import torch

        self._device_N: torch.Tensor | None = device_N
        self._stream = torch.cuda.Stream(device_N.device)
        self._done = torch.cuda.Event()

    @classmethod
    def make(cls, size: int, *, readers: int) -> tuple[DeviceMemory, list[str]]:
        """The memory, on the current device, and how each of so many processes finds it. torch counts who let go of it, one for each time
        that it was given away: a second reader of the same handle would have it count below zero, and never free the memory."""
        import torch
        from torch.multiprocessing.reductions import reduce_tensor

        device_N = torch.empty(size, dtype=torch.uint8, device="cuda")
        return cls(device_N), [handle_text(reduce_tensor(device_N)[1], size=size) for _ in range(readers)]

    @classmethod
    def find(cls, told: str) -> DeviceMemory:
        """What another process made on the current device of this thread."""
        import torch
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        return cls(rebuild_cuda_tensor(*handle_arguments(told, device=torch.cuda.current_device())))

    def write(self, bucket_N: torch.Tensor, *, until: float) -> None:
        assert self._device_N is not None
        self._copy(self._device_N[: bucket_N.numel()], bucket_N, until)

    def read(self, bucket_N: torch.Tensor, *, until: float) -> None:
        assert self._device_N is not None
        self._copy(bucket_N, self._device_N[: bucket_N.numel()], until)

    def _copy(self, target_N: torch.Tensor, source_N: torch.Tensor, until: float) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            target_N.copy_(source_N, non_blocking=True)
            self._done.record(self._stream)
        while not self._done.query():
            if time.monotonic() > until:
                raise RuntimeError("the GPU did not copy in time")
            time.sleep(POLL_S)

    def close(self) -> None:
        import torch

        self._device_N = None
        torch.cuda.ipc_collect()  # memory that was given to others is kept until somebody looks whether they let go


def handle_text(arguments: Sequence[Any], *, size: int) -> str:
    """The arguments that ``reduce_tensor`` gives for a row of bytes, as JSON; what is the same for each of them is left out."""
    named = dict(zip(ARGUMENTS, arguments, strict=True))
    sent = {name: base64.b64encode(named[name]).decode() if name in _BYTES else named[name] for name in _SENT}
    return json.dumps({**sent, "size": size})


def handle_arguments(text: str, *, device: int) -> list[Any]:
    """What ``rebuild_cuda_tensor`` takes.

    Args:
        device: the number that the GPU has in this process: it may have another one in the sender's.
    """
    import torch

    told = json.loads(text)
    known = {
        "tensor_cls": torch.Tensor, "tensor_size": (told["size"],), "tensor_stride": (1,), "storage_cls": torch.storage.TypedStorage,
        "dtype": torch.uint8, "storage_device": device, "requires_grad": False,
    }  # fmt: skip
    return [known[name] if name in known else base64.b64decode(told[name]) if name in _BYTES else told[name] for name in ARGUMENTS]


def gpu_here() -> str:
    """UUID of the current device of this thread; empty without a GPU."""
    import torch

    return gpu_of(torch.device("cuda", torch.cuda.current_device())) if torch.cuda.is_available() else ""


def gpu_of(device: torch.device | None) -> str:
    """UUID of a device; empty where that is no GPU."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid) if device is not None and device.type == "cuda" else ""


def gpus_here() -> list[str]:
    """UUIDs of all GPUs that this process sees, in their order."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [gpu_of(torch.device("cuda", number)) for number in range(torch.cuda.device_count())]
