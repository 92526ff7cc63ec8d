"""What each process that trains does with a job: find its trainer, train, and tell why there is no checkpoint."""

from __future__ import annotations

import structlog

from reef import plugins
from reef.errors import ReefError, TrainingError
from reef.training.job import TrainingJob
from reef.training.trainer import Trainer

log = structlog.get_logger()


def work(job: TrainingJob) -> bool:
    """Do this process's part of a job; whether there is a checkpoint. Where there is none, the job's folder says why."""
    try:
        result = _trainer(job.settings.trainer).train(job)
    except ReefError as error:
        give_up(job, error)
        return False
    log.info("trained", **result.metrics, skipped=dict(result.skipped))
    return True


def give_up(job: TrainingJob, error: ReefError) -> None:
    """Say why there is no checkpoint, in the log and to whoever waits for one."""
    log.error("no checkpoint", error=error.message, hint=error.hint)
    job.fail(error)


def _trainer(name: str) -> Trainer:
    kind = plugins.load("reef.trainers", name)
    if not (isinstance(kind, type) and issubclass(kind, Trainer)):
        raise TrainingError(f"{name} is no trainer", hint="It must be a subclass of reef.training.trainer:Trainer.")
    return kind()
