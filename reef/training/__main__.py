"""``python -m reef.training FOLDER``: the trainer's process, started by :func:`reef.training.watch.run`; by hand, to look into a job."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import structlog

from reef import plugins, process
from reef.errors import ReefError, TrainingError
from reef.training import distributed
from reef.training.job import TrainingJob
from reef.training.trainer import Trainer

log = structlog.get_logger()


def main(folder: Path) -> int:
    """Do the job of a folder; 0 if there is a checkpoint."""
    rank = distributed.rank()
    if rank is None:
        process.when_parent_ends(lambda: os.killpg(0, signal.SIGKILL))
    else:
        distributed.end_with_parent()
    process.configure_logging()
    job = TrainingJob.load(folder)
    try:
        if rank is None:
            os.nice(job.settings.nice)
        if rank is None and job.settings.processes > 1:
            os.environ.pop(process.PARENT_FD, None)  # the ranks do not inherit the descriptor
            distributed.launch(folder, processes=job.settings.processes)
            return 0
        result = _trainer(job.settings.trainer).train(job)
        log.info("trained", **result.metrics, skipped=dict(result.skipped))
    except ReefError as error:
        log.error("no checkpoint", error=error.message, hint=error.hint)
        job.fail(error)
        return 1
    return 0


def _trainer(name: str) -> Trainer:
    kind = plugins.load("reef.trainers", name)
    if not (isinstance(kind, type) and issubclass(kind, Trainer)):
        raise TrainingError(f"{name} is no trainer", hint="It must be a subclass of reef.training.trainer:Trainer.")
    return kind()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m reef.training FOLDER")
    sys.exit(main(Path(sys.argv[1])))
