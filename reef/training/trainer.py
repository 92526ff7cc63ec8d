"""The trainer contract: what makes a candidate's weights of a batch. ``reef.training.torch_trainer`` is the one to copy."""

from __future__ import annotations

from abc import ABC, abstractmethod

from reef.training.job import TrainingJob, TrainingResult


class Trainer(ABC):
    """Made anew for each job, in a process of its own (``python -m reef.training FOLDER``) that runs beside serving and may be killed.

    Example::

        class Untrained(Trainer):
            def train(self, job: TrainingJob) -> TrainingResult:
                return checkpoint.write(job, lambda folder: shutil.copytree(job.base, folder, dirs_exist_ok=True), metrics={}, skipped={})
    """

    @abstractmethod
    def train(self, job: TrainingJob) -> TrainingResult:
        """Make the checkpoint ``job.output``.

        It is there whole or not at all (:func:`reef.training.checkpoint.write`), it is the same for the same job, and neither
        ``job.base`` nor ``job.parent`` is changed.

        Raises:
            TrainingError: nothing could be learned, or a number was not finite.
            StorageError: the checkpoint could not be written.
        """
