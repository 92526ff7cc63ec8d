"""The trainer that comes with Reef: torch, with peft for LoRA and FSDP2 for more than one process. The room's other files do the work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reef import process
from reef.errors import NothingLearned, TrainingError
from reef.training import checkpoint
from reef.training.job import TrainingJob, TrainingResult
from reef.training.trainer import Trainer

if TYPE_CHECKING:
    from reef.training.learning import Learning
    from reef.training.policy import Policy


class TorchTrainer(Trainer):
    """Trains a LoRA or all weights of a causal language model. torch is imported when a job is there, not before."""

    def train(self, job: TrainingJob) -> TrainingResult:
        try:
            with process.staying_put():
                import torch
        except ImportError as error:
            raise TrainingError(f"torch cannot be imported: {error}", hint="Install the extra: pip install 'reef[train]'.") from error
        from reef.training.distributed import group
        from reef.training.learning import Learning
        from reef.training.policy import open_policy

        torch.manual_seed(job.settings.seed)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with group() as ranks:
            policy = open_policy(job, group=ranks)
            _refuse_unknown_tokens(job, vocabulary=policy.model.get_input_embeddings().weight.shape[0])
            learning = Learning(job, policy)
            metrics, skipped = learning.run()
            _refuse_broken(policy)
            if ranks.leads:
                result = checkpoint.write(
                    job, lambda folder: _save(folder, job=job, policy=policy, learning=learning), metrics=metrics, skipped=skipped
                )
            else:  # the whole of a sharded tensor takes every rank
                _save(job.folder, job=job, policy=policy, learning=learning)
                result = TrainingResult(job.output, metrics, skipped)
            ranks.barrier()
            return result


def _save(folder: Path, *, job: TrainingJob, policy: Policy, learning: Learning) -> None:
    policy.save(folder, base=job.base)
    learning.save(folder)


def _refuse_unknown_tokens(job: TrainingJob, *, vocabulary: int) -> None:
    highest = max((max(sample.tokens, default=0) for sample in job.samples), default=0)
    if highest >= vocabulary:
        raise TrainingError(
            f"the batch has the token {highest}, and {job.base} knows {vocabulary} tokens", hint="Is it the model that was served?"
        )


def _refuse_broken(policy: Policy) -> None:
    import torch

    from reef.training.distributed import own

    broken = sum(not torch.isfinite(own(parameter)).all() for parameter in policy.trained.values())
    if any(policy.group.gather(broken)):
        raise NothingLearned("a weight is no longer a finite number: nothing was written", hint="Lower training.learning_rate.")
