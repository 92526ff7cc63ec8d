"""The trainer's process as the learner sees it: started, watched, ended in time, and never left behind. Imports nothing of torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from reef import process
from reef.config import TrainingConfig
from reef.errors import TrainingError, TrainingTimeout
from reef.training import checkpoint
from reef.training.job import ERROR, LOG, TrainingJob, TrainingResult

POLL_S = 0.05
TAIL_BYTES = 2000
END_S = 10.0
"""Bound on the end of a process that was killed; it takes long only where the kernel is writing for it."""
_NOT_FOR_IT = (process.CONFIG, process.TRIAL_TOKEN, process.PROPOSER_TOKEN, process.LISTEN_FD)


def run(job: TrainingJob, *, timeout_s: float, stop: threading.Event) -> TrainingResult:
    """Have a job's candidate made in a process of its own; blocks until it is. A job that is done already is not done again.

    The process is in a group of its own, which is killed when it takes too long, when ``stop`` is set, and when this process ends,
    however it ends.

    Raises:
        TrainingTimeout: it took longer than ``timeout_s``.
        TrainingError: the trainer gave up, crashed (the message has the end of its log) or was stopped. Running the job again is safe.
        StorageError: the disk refused the job or the checkpoint.
    """
    if (done := job.result()) is not None:
        return done
    job.save()
    (job.folder / ERROR).unlink(missing_ok=True)
    until = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        alive_read, alive_write = os.pipe()  # the write end closes with this process, whatever ends it
        stack.callback(os.close, alive_write)
        stack.callback(os.close, alive_read)
        popen = _start(job, alive=alive_read)
        stack.callback(_end, popen)
        while popen.poll() is None:
            if time.monotonic() > until:
                raise TrainingTimeout(
                    f"the trainer in {job.folder} was killed after {timeout_s:g} s", hint="Raise training.timeout_s, or train on less."
                )
            if stop.wait(POLL_S):
                raise TrainingError(f"the training in {job.folder} was stopped", hint="The next start does it again.")
    result = job.result()
    if result is not None:
        return result
    raise job.error() or TrainingError(
        f"the trainer in {job.folder} ended with {_told(popen.returncode)}:\n{tail(job.folder / LOG)}",
        hint="It is tried again from the same parent; the whole log is in that folder.",
    )


def tail(log: Path) -> str:
    """The end of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()
    except OSError as error:
        return f"(no log: {error})"


def environment(settings: TrainingConfig) -> dict[str, str]:
    """The variables a trainer starts with."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT} | libraries(settings)


def libraries(settings: TrainingConfig) -> dict[str, str]:
    """What the libraries of a process that trains are told. They count threads when they are loaded: it is too late to set them after."""
    threads = settings.threads or max(1, (os.cpu_count() or 2) // 2 // settings.processes)
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)) | {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS is not deterministic
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _start(job: TrainingJob, *, alive: int) -> subprocess.Popen[bytes]:
    checkpoint.sweep(job)
    variables = {**environment(job.settings), process.PARENT_FD: str(alive)}
    with (job.folder / LOG).open("ab") as log:  # several processes write to it, each after the others
        log.truncate(0)
        return subprocess.Popen(
            [sys.executable, "-m", "reef.training", str(job.folder.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            pass_fds=(alive,),
            start_new_session=True,
        )


def _end(popen: subprocess.Popen[bytes]) -> None:
    """Kill the whole group: nothing half-made is ever in the checkpoint's place, so there is nothing to end gently for."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(END_S)


def _told(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def discard(job: TrainingJob) -> None:
    """Remove a job's folder, once its checkpoint is in the artifact repository."""
    shutil.rmtree(job.folder, ignore_errors=True)
