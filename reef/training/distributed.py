"""Several processes for one job: torchrun starts them, or Ray Train; FSDP2 shards model, gradients and optimizer among them."""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reef import process
from reef.errors import TrainingError

if TYPE_CHECKING:
    import torch

COLLECTIVE_TIMEOUT_S = 300.0
_PR_SET_PDEATHSIG = 1


def rank() -> int | None:
    """Which of torchrun's processes this is; None where it did not start this one."""
    return int(os.environ["RANK"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else None


def end_with_parent() -> None:
    """Have the kernel kill this process when torchrun ends: each rank is in a session of its own, which a kill of its group misses."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def launch(folder: Path, *, processes: int) -> None:
    """Run the job of a folder in several processes of this machine, and wait for them.

    Raises:
        TrainingError: one of them failed; where it said why, that is in the folder.
    """
    with process.staying_put():
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.run import get_args_parser, run

    options = ["--nnodes=1", f"--nproc-per-node={processes}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    options += ["--local-addr=127.0.0.1", "--max-restarts=0", "--module", "reef.training", str(folder)]
    try:
        run(get_args_parser().parse_args(options))
    except ChildFailedError as error:
        from reef.training.job import TrainingJob

        told = TrainingJob.load(folder).error()
        if told is not None:
            raise told from error
        number, failure = error.get_first_failure()
        raise TrainingError(
            f"rank {number} of the trainer ended with exit code {failure.exitcode}", hint="Its words are in the log of the job's folder."
        ) from error


@contextmanager
def group() -> Iterator[Group]:
    """The ranks of this job; one alone, without any collective, where nothing started several."""
    import torch
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():  # by Ray Train, which ends it as well
        yield Group(rank=dist.get_rank(), size=dist.get_world_size())
        return
    if rank() is None:
        yield Group(rank=0, size=1)
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    try:
        yield Group(rank=dist.get_rank(), size=dist.get_world_size())
    finally:
        dist.destroy_process_group()


class Group:
    """The ranks of one job, and what they do together. A group of one does nothing, at no cost."""

    def __init__(self, *, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def shard(self, model: torch.nn.Module) -> None:
        """Shard a model in place, each of its layers for itself, so that no rank ever holds more than one whole."""
        if self.size == 1:
            return
        import torch
        from torch.distributed.fsdp import fully_shard

        for module in list(model.modules()):
            if isinstance(module, torch.nn.ModuleList):
                for layer in module:
                    fully_shard(layer)
        # Else what stands outside the layers stays gathered after a pass, and the student would be read with its teacher's head.
        fully_shard(model, reshard_after_forward=True)

    def sum(self, *tensors: torch.Tensor) -> None:
        """Add up tensors over the ranks, in place."""
        if self.size == 1:
            return
        import torch.distributed as dist

        for tensor in tensors:
            dist.all_reduce(tensor)

    def gather(self, anything: Any) -> list[Any]:
        """What each rank has, in order, on every rank."""
        if self.size == 1:
            return [anything]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, anything)
        return found

    def barrier(self) -> None:
        """Wait for all."""
        if self.size > 1:
            import torch.distributed as dist

            dist.barrier()


def whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, unsharded, on the CPU. A collective: every rank calls it, for the same names in the same order."""
    from torch.distributed.tensor import DTensor

    found = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found[name] = full.detach().cpu().contiguous()
    return found


def own(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, without a gradient."""
    from torch.distributed.tensor import DTensor

    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def like(tensor: torch.Tensor, *, pattern: torch.Tensor) -> torch.Tensor:
    """A whole tensor, sharded as ``pattern`` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(pattern, DTensor):
        return tensor.to(pattern.device, pattern.dtype)
    return distribute_tensor(tensor.to(pattern.device, pattern.dtype), pattern.device_mesh, pattern.placements)
