"""``python -m reef.training FOLDER``: the trainer's process, started by :func:`reef.training.watch.run`; by hand, to look into a job."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from reef import process
from reef.errors import ReefError
from reef.training import distributed
from reef.training.job import TrainingJob
from reef.training.work import give_up, work


def main(folder: Path) -> int:
    """Do the job of a folder; 0 if there is a checkpoint."""
    rank = distributed.rank()
    if rank is None:
        process.when_parent_ends(lambda: os.killpg(0, signal.SIGKILL))
    else:
        distributed.end_with_parent()
    process.configure_logging()
    job = TrainingJob.load(folder)
    if rank is not None:
        return 0 if work(job) else 1
    try:
        os.nice(job.settings.nice)
        if job.settings.backend == "ray":
            _leave_alone()
            from reef.training import ray_launch

            ray_launch.launch(job)
        elif job.settings.processes > 1:
            _leave_alone()
            distributed.launch(folder, processes=job.settings.processes)
        else:
            return 0 if work(job) else 1
    except ReefError as error:
        give_up(job, error)
        return 1
    return 0


def _leave_alone() -> None:
    """Have the processes that are started from here not look for a descriptor that they do not inherit."""
    os.environ.pop(process.PARENT_FD, None)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m reef.training FOLDER")
    sys.exit(main(Path(sys.argv[1])))
