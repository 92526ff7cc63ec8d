"""Several processes for one job on a Ray cluster (the extra ``ray``): Ray Train starts them where there is room and joins them to a group.

What they do is what torchrun's processes do (:mod:`reef.training.distributed`). A worker reads the job and the model, and writes the
checkpoint, under the paths that the learner has: on more than one machine that takes a shared file system, as Ray's own checkpoints do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

import reef
from reef import process
from reef.errors import ConfigError, NotFound, TrainingError
from reef.training.distributed import COLLECTIVE_TIMEOUT_S
from reef.training.job import LOG, TrainingJob
from reef.training.watch import libraries
from reef.training.work import work

log = structlog.get_logger()

SCRATCH = "ray-scratch"
"""File in the job's folder that names the folder of its cluster."""
STARTED_S = 300
"""Bound on the start of the workers, once there is room for them: Ray's minute is too short on a machine that has much else to do."""
CONNECT_S = 10.0
_STORE_BYTES = 128 << 20
_SHARED = "Every machine of the cluster needs the state folder and the model under the same paths: a shared file system."
_OWN_ADDRESS = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Of a cluster of our own. Asked for 127.0.0.1, Ray takes the machine's outer address on Linux; another of the loopback it leaves."""
_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(STARTED_S),
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_worker_niceness": "0",  # of a cluster of our own: `training.nice` says it, and Ray would add 15
}
"""Read when Ray is imported."""


def launch(job: TrainingJob) -> None:
    """Have a job done on the cluster, and wait for it.

    Raises:
        ConfigError: Ray is not installed.
        TrainingError: there is no cluster, or one of the processes failed; where it said why, that is in the folder.
    """
    check_installed()
    os.environ.update({name: os.environ.get(name, value) for name, value in _VARIABLES.items()})
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    with _cluster(job) as gpu:
        log.info("on Ray", cluster=job.settings.address or "of our own", processes=job.settings.processes, gpu=gpu)
        settings = job.settings
        trainer = TorchTrainer(
            on_worker,
            train_loop_config={"folder": str(job.folder.absolute()), "version": reef.__version__},
            torch_config=TorchConfig(backend="nccl" if gpu else "gloo", timeout_s=int(COLLECTIVE_TIMEOUT_S)),
            scaling_config=ScalingConfig(num_workers=settings.processes, use_gpu=gpu, resources_per_worker={"GPU" if gpu else "CPU": 1}),
            run_config=RunConfig(
                name="run", storage_path=str((job.folder / "ray").absolute()), failure_config=FailureConfig(max_failures=0)
            ),
        )
        try:
            trainer.fit()
        except TrainingFailedError as error:
            raise job.error() or TrainingError(
                f"the trainer on Ray ended: {error}", hint="The words of its processes are in the log of the job's folder."
            ) from error
    if not job.output.is_dir():
        raise TrainingError(f"the trainer on Ray is done, and its checkpoint is not in {job.folder}", hint=_SHARED)


def on_worker(told: dict[str, str]) -> None:
    """What each worker does. Ray Train has made it a member of the group by now.

    Raises:
        RuntimeError: there is no checkpoint, which ends the others as well.
    """
    folder = Path(told["folder"])
    try:
        job = TrainingJob.load(folder)
    except NotFound as error:
        raise RuntimeError(f"{error.message}. {_SHARED}") from None
    if told["version"] != reef.__version__:
        raise RuntimeError(f"this Ray worker has Reef {reef.__version__}, and the learner {told['version']}")
    _speak_into(folder / LOG)
    process.configure_logging()
    os.nice(max(0, job.settings.nice - os.nice(0)))
    with process.staying_put():
        import torch

    if torch.cuda.is_available():
        from ray.train.torch import get_device

        torch.cuda.set_device(get_device())
    if not work(job):
        raise RuntimeError("it gave up")


def check_installed() -> None:
    """See that Ray Train is there.

    Raises:
        ConfigError: it is not.
    """
    if any(importlib.util.find_spec(name) is None for name in ("ray", "pyarrow")):
        raise ConfigError("training.backend is ray, and Ray Train is not installed", hint="pip install 'reef[ray]'")


def _speak_into(file: Path) -> None:
    """Have what this process says, a crash of a library included, follow on what the others say."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _reach(address: str) -> None:
    """See that somebody is there: Ray itself tries for minutes.

    Raises:
        OSError: nobody is.
        ValueError: that is no address.
    """
    if address not in ("", "auto"):
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()


@contextlib.contextmanager
def _scratch(job: TrainingJob) -> Iterator[str]:
    """A folder for the sockets and logs of a cluster of our own, outside the job's: the name of a socket may have 107 bytes. What a run of
    this job left that was killed is removed: the job's folder says where it is."""
    note = job.folder / SCRATCH
    if note.exists():
        shutil.rmtree(note.read_text(), ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="reef-ray-", ignore_cleanup_errors=True) as folder:
        note.write_text(folder)
        yield folder
    note.unlink()


@contextlib.contextmanager
def _cluster(job: TrainingJob) -> Iterator[bool]:
    """Connected to the cluster; whether it has GPUs. One of our own ends with this process, however that ends.

    Raises:
        TrainingError: it cannot be reached.
    """
    import ray

    address = job.settings.address
    with contextlib.ExitStack() as stack:
        own: dict[str, Any] = {}
        if not address:
            scratch = stack.enter_context(_scratch(job))
            own = {"num_cpus": job.settings.processes, "object_store_memory": _STORE_BYTES, "_node_ip_address": _OWN_ADDRESS}
            own |= {"include_dashboard": False, "_temp_dir": scratch}
        try:
            _reach(address)
            environment = {"env_vars": libraries(job.settings)}
            ray.init(address or "local", log_to_driver=False, configure_logging=False, runtime_env=environment, **own)
        except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
            raise TrainingError(
                f"the Ray cluster {address or 'of our own'} cannot be used: {error}",
                hint="`ray status` says whether it is up; it takes a Ray node on this machine.",
            ) from error
        stack.callback(ray.shutdown)
        yield ray.cluster_resources().get("GPU", 0) > 0
