"""Which way new weights take: by what they are, and by what the engines can."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from reef.errors import ConfigError, ReefError
from reef.serving.sync.disk import DiskSync
from reef.serving.sync.engines import Engine, rpc
from reef.serving.sync.interface import WeightKind, WeightSync
from reef.serving.sync.lora import LoraSync
from reef.serving.sync.names import MIDDLEWARE
from reef.serving.sync.shared import gpus_here
from reef.serving.sync.transfer import TransferSync

WORKER_EXTENSION = "reef.serving.sync.worker.ReefWorker"
WEIGHT_TRANSFER = '{"backend": "reef"}'
WAYS = ("auto", "gloo", "nccl", "ipc", "disk")
PROBE_S = 10.0


def engine_flags() -> list[str]:
    """What an engine is started with, so that full weights can be sent to it."""
    return ["--worker-extension-cls", WORKER_EXTENSION, "--weight-transfer-config", WEIGHT_TRANSFER, "--middleware", MIDDLEWARE]


def choose(
    kind: WeightKind,
    engines: Sequence[Engine],
    *,
    way: str = "auto",
    base: Path | None = None,
    host: str = "127.0.0.1",
    keep: int = 1,
    in_use: Callable[[], Collection[str]] = tuple,
) -> WeightSync:
    """The sync for weights of this kind.

    Args:
        way: ``serving.vllm.sync``. ``auto`` takes IPC where every worker is on one GPU that this process sees too, else gloo where every
            engine has our worker, else the disk; NCCL has to be asked for, because it needs a GPU that no engine uses for the sender.
        base: the folder that the engines were started with.
        host: this machine's address, as the engines' workers reach it.
        keep: how many LoRA releases of a scenario stay loaded.
        in_use: names of LoRAs that running sessions ask for.

    Raises:
        ConfigError: there is no such way, or it cannot be taken here.
    """
    if way not in WAYS:
        raise ConfigError(f"no way {way!r} to bring weights into an engine", hint=f"One of {', '.join(WAYS)}.")
    if not engines:
        raise ConfigError("no engine to bring weights into", hint="Set serving.vllm.model, or serving.vllm.attach.")
    if kind is WeightKind.LORA:
        return LoraSync(engines, keep=keep, in_use=in_use)
    if way == "disk" or (way == "auto" and not all(has_worker(engine) for engine in engines)):
        if base is None:
            raise ConfigError("full weights over the disk need the folder of the model", hint="Set serving.vllm.model to a folder.")
        return DiskSync(engines, base=base)
    if way == "auto":
        way = "ipc" if share_gpu(engines) else "gloo"
    return TransferSync(engines, channel=way, host=host)


def has_worker(engine: Engine) -> bool:
    """Whether an engine was started with :func:`engine_flags`."""
    try:
        return bool(rpc(engine, "reef_versions", timeout_s=PROBE_S))
    except ReefError:
        return False


def share_gpu(engines: Sequence[Engine]) -> bool:
    """Whether all workers of all engines compute on one GPU, which this process sees too. No engine is asked where this one sees none."""
    here = gpus_here()
    if not here:
        return False
    try:
        gpus = {str(worker.get("gpu", "")) for engine in engines for worker in rpc(engine, "reef_versions", timeout_s=PROBE_S)}
    except ReefError:
        return False
    return len(gpus) == 1 and gpus <= set(here)
