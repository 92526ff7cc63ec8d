"""The loop: samples made ready, cut into micro-batches, read, judged by the loss, and the weights moved once for each group of samples."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import torch
from torch import Tensor

from reef.errors import NothingLearned
from reef.training import losses, state
from reef.training.companions import Average, Fixed
from reef.training.critic import Critic, Key, key_of
from reef.training.job import TrainingJob
from reef.training.losses.contract import Inputs, Loss, Need, Output, Prepared
from reef.training.microbatches import MicroBatch, cut
from reef.training.policy import Policy, logprobs
from reef.training.sample import Sample

log = structlog.get_logger()


@dataclass(slots=True)
class Tally:
    """Sums over the samples of one update, of one rank; added up over the ranks."""

    loss: float = 0.0
    used: int = 0
    tokens: int = 0
    metrics: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, batch: MicroBatch, output: Output, *, total: float) -> None:
        self.loss += total
        self.used += int(output.used_B.sum())
        self.tokens += sum(s.generated for s, used in zip(batch.samples, output.used_B.tolist(), strict=True) if used)
        self.skipped.update(output.skipped)
        for name, value in output.metrics.items():
            self.metrics[name] += value  # type: ignore[assignment]  # a Counter of floats

    def merge(self, other: Tally) -> None:
        self.loss += other.loss
        self.used += other.used
        self.tokens += other.tokens
        self.skipped.update(other.skipped)
        self.metrics.update(other.metrics)


class Learning:
    """One job's learning, from the state its parent left to the state its checkpoint keeps.

    Raises:
        ConfigError: the loss or an option of it is not known.
        TrainingError: the state kept with the parent is of something else.
    """

    def __init__(self, job: TrainingJob, policy: Policy) -> None:
        self._job = job
        self._policy = policy
        self._settings = job.settings
        self._loss: Loss = losses.load(job.loss, options=job.options)
        kept, trained = job.state or job.parent, policy.trained
        self.progress = state.read_progress(kept)
        self.optimizer = torch.optim.AdamW(
            trained.values(), lr=self._settings.learning_rate, betas=self._settings.betas, weight_decay=self._settings.weight_decay
        )
        state.restore_optimizer(self.optimizer, trained, state.read_tensors(kept, "optimizer"), what="optimizer")
        needs, teacher = self._loss.needs, self._loss.teacher
        self._base = Fixed(job, policy, teacher=False) if Need.BASE_LOGPROBS in needs else None
        self._teacher: Fixed | Average | None = None
        if teacher is not None and teacher.kind == "ema":
            self._teacher = Average(policy, rate=teacher.rate, kept=state.read_tensors(kept, "teacher"))
        elif teacher is not None or needs & {Need.TEACHER_LOGITS, Need.TEACHER_LOGPROBS}:
            self._teacher = Fixed(job, policy, teacher=True)
        self._critic = self._new_critic(state.read_tensors(kept, "critic")) if Need.VALUES in needs else None
        self._base_rows: dict[Key, list[float]] = {}

    def run(self) -> tuple[dict[str, float], Counter[str]]:
        """Learn from the job's samples; metrics, and how many samples were left out and why.

        Raises:
            TrainingError: no sample carries a signal, or a number is not finite.
        """
        began = time.monotonic()
        prepared = self._prepare(self._job.samples)
        told = dict(prepared.metrics)
        if self._critic is not None and self._loss.critic is not None:
            told["critic_loss"] = self._critic.learn(prepared.samples, prepared.returns, updates=self._loss.critic.updates)
            self.progress.critic_steps += 1
            if self.progress.critic_steps <= self._loss.critic.warm_up_steps:
                return told | {"updates": 0.0, "tokens": 0.0, "seconds": time.monotonic() - began}, prepared.skipped
        done: list[dict[str, float]] = []
        skipped = Counter(prepared.skipped)
        for epoch in range(self._settings.epochs):
            for samples in self._dealt(prepared.samples, epoch=epoch):
                metrics, left_out = self._update(samples)
                skipped.update(left_out)
                if metrics is not None:
                    log.info("update", **metrics)
                    done.append(metrics)
        if not done:
            raise _no_signal(len(self._job.samples), skipped)
        told |= {name: sum(metrics[name] for metrics in done) / len(done) for name in done[0]}
        told |= {"tokens": sum(metrics["tokens"] for metrics in done), "updates": float(len(done)), "seconds": time.monotonic() - began}
        return told, +skipped

    def gradients(self, samples: Sequence[Sample]) -> Tally:
        """Add the gradient of the samples' loss to the parameters, micro-batch by micro-batch. A collective."""
        group = self._policy.group
        tally = Tally()
        for batch in cut(samples, tokens=self._settings.micro_batch_tokens, ranks=group.size)[group.rank]:
            output = self._loss(self._inputs(batch))
            total = output.total(samples=len(samples))
            (total * (group.size if batch.real else 0)).backward()  # FSDP takes the mean over the ranks, and the loss is a sum
            if batch.real:
                tally.add(batch, output, total=float(total.detach()))
        whole = Tally()
        for part in group.gather(tally):
            whole.merge(part)
        return whole

    def save(self, folder: Path) -> None:
        """Write what the next step needs. A collective: every rank calls it, the leading one writes."""
        parts = {}
        if self._settings.keep_optimizer:
            parts["optimizer"] = state.optimizer_tensors(self.optimizer, self._policy.trained)
        if isinstance(self._teacher, Average):
            parts["teacher"] = self._teacher.tensors()
        if self._critic is not None:
            parts["critic"] = self._critic.tensors()
        if self._policy.group.leads:
            state.write_progress(folder, self.progress)
            for name, tensors in parts.items():
                state.write_tensors(folder, name, tensors)

    def _prepare(self, samples: Sequence[Sample]) -> Prepared:
        alive = [sample for sample in samples if sample.generated]
        if not alive:
            raise _no_signal(len(samples), Counter(empty_mask=len(samples)))
        values = base = None
        if self._critic is not None or self._base is not None:
            self._look(alive)
        if self._critic is not None:
            known = iter(self._critic.values(alive))
            values = [next(known) if sample.generated else [0.0] * len(sample.tokens) for sample in samples]
        if self._base is not None:
            base = [self._base_rows.get(key_of(sample), [0.0] * len(sample.tokens)) for sample in samples]
        prepared = self._loss.prepare(samples, values=values, base_logprobs=base)
        if not prepared.samples:
            raise _no_signal(len(samples), prepared.skipped)
        return prepared

    def _look(self, samples: Sequence[Sample]) -> None:
        """One pass without a gradient over all samples, for what is needed before the first update. A collective."""
        group, device = self._policy.group, self._policy.device
        rows: dict[Key, list[float]] = {}
        for batch in cut(samples, tokens=self._settings.micro_batch_tokens, ranks=group.size)[group.rank]:
            reading = batch.reading(device)
            if self._critic is not None:
                with torch.no_grad():
                    states_BGH = self._policy.read(reading)[1]
                for sample, states_GH in zip(batch.samples, states_BGH, strict=True):
                    if batch.real:
                        self._critic.look_at(sample, states_GH[: sample.generated])
            if self._base is not None:
                told_BG = logprobs(self._base.logits(reading), batch.ids(device))
                for sample, told in zip(batch.samples, told_BG.tolist(), strict=True):
                    each = iter(told)
                    rows[key_of(sample)] = [next(each) if generated else 0.0 for generated in sample.mask]
        for part in group.gather(rows):
            self._base_rows |= part

    def _dealt(self, samples: Sequence[Sample], *, epoch: int) -> list[list[Sample]]:
        """The samples of each update of an epoch. In another order each time, where there are several."""
        size = self._settings.samples_per_update or len(samples)
        if size >= len(samples):
            return [list(samples)]
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(self._settings.seed + epoch)).tolist()
        return [[samples[place] for place in order[first : first + size]] for first in range(0, len(samples), size)]

    def _update(self, samples: Sequence[Sample]) -> tuple[dict[str, float] | None, Counter[str]]:
        """Move the weights once; None where the gradient is zero, and nothing was moved."""
        self.optimizer.zero_grad(set_to_none=True)
        tally = self.gradients(samples)
        if not tally.used:
            raise _no_signal(len(samples), tally.skipped)
        norm = self._clip()
        if not (math.isfinite(norm) and math.isfinite(tally.loss)):
            raise NothingLearned(
                f"the loss is {tally.loss} and the gradient's norm {norm}: nothing was written", hint="Lower training.learning_rate."
            )
        if not norm:  # AdamW would still move by the gradients of before
            tally.skipped["no_gradient"] += tally.used
            return None, tally.skipped
        self.optimizer.step()
        self.progress.updates += 1
        if isinstance(self._teacher, Average):
            self._teacher.follow()
        means = {name: value / tally.used for name, value in tally.metrics.items()}
        return means | {"loss": tally.loss, "grad_norm": norm, "tokens": float(tally.tokens)}, tally.skipped

    def _clip(self) -> float:
        """Cut the gradient to its bound; its norm before."""
        parameters = [parameter for parameter in self._policy.trained.values() if parameter.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._settings.max_grad_norm or math.inf)
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def _inputs(self, batch: MicroBatch) -> Inputs:
        device, needs, samples = self._policy.device, self._loss.needs, batch.samples
        ids_BG, reading = batch.ids(device), batch.reading(device)
        teacher_BGV = self._teacher.logits(batch.taught(device)) if self._teacher is not None else None
        logits_BGV, _ = self._policy.read(reading)
        top = batch.top(device)
        advantages = [sample.advantages for sample in samples]
        return Inputs(
            logprobs_BT=logprobs(logits_BGV, ids_BG),
            old_logprobs_BT=batch.column([sample.old_logprobs for sample in samples], device),
            mask_BT=batch.mask(device),
            advantages_BT=None if any(row is None for row in advantages) else batch.column([row or () for row in advantages], device),
            weights_B=torch.tensor([sample.weight for sample in samples], device=device),
            base_logprobs_BT=batch.column([self._base_rows[key_of(sample)] for sample in samples], device) if self._base else None,
            logits_BTV=logits_BGV if Need.LOGITS in needs else None,
            teacher_logits_BTV=teacher_BGV if Need.TEACHER_LOGITS in needs else None,
            teacher_logprobs_BT=logprobs(teacher_BGV, ids_BG) if teacher_BGV is not None and Need.TEACHER_LOGPROBS in needs else None,
            taught_B=torch.tensor([sample.teacher is not None for sample in samples], device=device) if self._teacher is not None else None,
            top_ids_BTK=top[0] if top else None,
            top_logprobs_BTK=top[1] if top else None,
        )

    def _new_critic(self, kept: dict[str, Tensor]) -> Critic:
        width = self._policy.model.get_output_embeddings().weight.shape[-1]
        settings, policy = self._settings, self._policy
        return Critic(width, learning_rate=settings.critic_learning_rate, group=policy.group, device=policy.device, kept=kept)


def _no_signal(samples: int, skipped: Counter[str]) -> NothingLearned:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()) if count) or "none was given"
    return NothingLearned(f"none of {samples} samples can be learned from: {reasons}", hint="See the batch; equal rewards carry no signal.")
