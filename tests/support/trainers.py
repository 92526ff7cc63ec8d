"""Trainers for what goes on around training: no torch, a moment each. `training.trainer` names them as `tests.support.trainers:NAME`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from reef.errors import NothingLearned, TrainingError
from reef.training import checkpoint
from reef.training.job import TrainingJob, TrainingResult
from reef.training.trainer import Trainer


class Writes(Trainer):
    """Writes a LoRA that says what it was made of."""

    def train(self, job: TrainingJob) -> TrainingResult:
        def fill(folder: Path) -> None:
            (folder / "adapter_config.json").write_text("{}")
            parent = (job.parent / "adapter_model.safetensors").read_bytes() if job.parent else b"base"
            (folder / "adapter_model.safetensors").write_bytes(parent + f"+{len(job.samples)}".encode())

        return checkpoint.write(job, fill, metrics={"updates": 1.0, "loss": 0.5}, skipped={})


class CrashesOnce(Writes):
    """Is killed the first time."""

    def train(self, job: TrainingJob) -> TrainingResult:
        once = job.base / "crashed"
        if not once.exists():
            once.touch()
            print("the last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(job)


class FindsNothing(Trainer):
    """Sees a number that is none."""

    def train(self, job: TrainingJob) -> TrainingResult:
        raise NothingLearned("the loss is nan: nothing was written", hint="Lower training.learning_rate.")


class NotSetUp(Trainer):
    """Lacks what it needs."""

    def train(self, job: TrainingJob) -> TrainingResult:
        raise TrainingError("torch cannot be imported", hint="Install the extra.")
