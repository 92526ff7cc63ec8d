"""OpenClaw-RL (arXiv 2603.10165): a judge reads a turn and what came next, votes −1, 0 or +1, and may say what should have been done.

L = rl·PPO-clip(A = vote) + opd·mean_t Σ_{v∈S_t} PPO-clip(ρ_v, A_v): S_t are the student's likeliest K tokens at generation,
ρ_v = exp(log π(v) − l_old(v)) and A_v = clamp(l_teacher(v) − l_old(v), ±1)·softmax_{S_t}(l_old)(v); the teacher is the frozen base model
reading the prompt with the hint. Public setting: ε 0.2 / 0.28.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from reef.errors import ConfigError
from reef.training.losses import advantages, divergence, policy
from reef.training.losses.contract import Inputs, Loss, Need, NoOptions, Prepared, TeacherPolicy
from reef.training.losses.masks import log_ratio, mean_B, ratio_metrics
from reef.training.losses.ppo_clip import ppo_clip_loss
from reef.training.sample import Sample


def hint_advantages(teacher_BTK: Tensor, *, old_BTK: Tensor, bound: float = 1.0) -> Tensor:
    """A_v = clamp(l_teacher − l_old, ±bound)·softmax(l_old) over the K tokens: (B, T, K), without a gradient."""
    teacher_BTK, old_BTK = teacher_BTK.detach(), old_BTK.detach()
    return (teacher_BTK - old_BTK).clamp(-bound, bound) * torch.softmax(old_BTK, dim=-1)


def hint_loss(student_BTK: Tensor, *, old_BTK: Tensor, teacher_BTK: Tensor, mask_BT: Tensor, low: float, high: float) -> Tensor:
    """mean_t Σ_v PPO-clip(ρ_v, A_v) of each sample: (B,).

    Args:
        student_BTK: log π of the tokens S_t; the only one a gradient reaches.
        old_BTK: under the policy that sampled.
        teacher_BTK: under the teacher, behind the hint.
    """
    weights_BTK = hint_advantages(teacher_BTK, old_BTK=old_BTK)
    ratios_BTK = (student_BTK - old_BTK.detach()).masked_fill(~mask_BT[..., None], 0.0)
    return mean_B(policy.clipped(ratios_BTK, weights_BTK, low=low, high=high).sum(dim=-1), mask_BT)


class OpenClawRL(Loss):
    """Both parts: the vote, and the hint where there is one."""

    class Options(NoOptions):
        """The parts' weights, and the range."""

        rl: float = Field(1.0, ge=0.0, description="Weight of the vote's part.")
        opd: float = Field(1.0, ge=0.0, description="Weight of the hint's part.")
        low: float = Field(0.2, gt=0.0, le=1.0, description="The ratio is clipped to at least 1 − low.")
        high: float = Field(0.28, gt=0.0, description="The ratio is clipped to at most 1 + high.")
        top_k: int = Field(20, ge=1, description="How many of the student's likeliest tokens the hint's part compares.")

    name = "openclaw_rl"
    teacher = TeacherPolicy("frozen")
    options: Options

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.LOGITS, Need.TEACHER_LOGITS}) if self.options.opd else frozenset()

    def _prepare(
        self,
        samples: Sequence[Sample],
        *,
        values: Sequence[Sequence[float]] | None,
        base_logprobs: Sequence[Sequence[float]] | None,
        skipped: Counter[str],
    ) -> Prepared:
        done: list[Sample | None] = []
        for sample in samples:
            judged = sample.advantages is not None or bool(sample.votes) or sample.reward is not None
            if not judged and not (self.options.opd and sample.teacher):
                skipped["no_reward"] += 1
                done.append(None)
            else:
                done.append(_voted(sample))
        return Prepared.of(done, skipped=skipped, by_teacher=bool(self.options.opd))

    def _compute(self, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        if inputs.advantages_BT is None:
            raise ConfigError("openclaw_rl needs advantages", hint="Build the inputs of samples that went through Loss.prepare.")
        low, high = self.options.low, self.options.high
        vote_B = ppo_clip_loss(
            inputs.logprobs_BT,
            old_logprobs_BT=inputs.old_logprobs_BT,
            mask_BT=inputs.mask_BT,
            advantages_BT=inputs.advantages_BT,
            low=low,
            high=high,
        )
        hint_B = self._hint(inputs) if self.options.opd and inputs.teacher_logits_BTV is not None else torch.zeros_like(vote_B)
        log_ratio_BT = log_ratio(inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.mask_BT)
        metrics = {**ratio_metrics(log_ratio_BT, inputs.mask_BT, low=low, high=high), "vote": vote_B, "hint": hint_B}
        return self.options.rl * vote_B + self.options.opd * hint_B, metrics

    def _hint(self, inputs: Inputs) -> Tensor:
        """The hint's part. Where no likeliest tokens were kept at generation, those of the policy as it is now stand for them: the same
        while a batch has one update."""
        if inputs.logits_BTV is None or inputs.teacher_logits_BTV is None:
            raise ConfigError("openclaw_rl needs logits beside teacher_logits", hint="Compute what Loss.needs names.")
        student_BTV = divergence.log_probabilities(inputs.logits_BTV)
        if inputs.top_ids_BTK is not None and inputs.top_logprobs_BTK is not None:
            ids_BTK, old_BTK = inputs.top_ids_BTK, inputs.top_logprobs_BTK
        else:
            old_BTK, ids_BTK = student_BTV.detach().topk(min(self.options.top_k, student_BTV.shape[-1]), dim=-1)
        teacher_BTK = divergence.log_probabilities(inputs.teacher_logits_BTV.detach()).gather(-1, ids_BTK)
        taught_BT = inputs.mask_BT if inputs.taught_B is None else inputs.mask_BT & inputs.taught_B[:, None]
        low, high = self.options.low, self.options.high
        return hint_loss(student_BTV.gather(-1, ids_BTK), old_BTK=old_BTK, teacher_BTK=teacher_BTK, mask_BT=taught_BT, low=low, high=high)


def _voted(sample: Sample) -> Sample:
    """With advantages: given already, the vote on each token's turn, or that on the whole."""
    if sample.advantages is not None:
        return sample
    if sample.votes:
        votes = iter(sample.votes)
        return sample.replace(advantages=tuple(next(votes) if generated else 0.0 for generated in sample.mask))
    return sample.replace(advantages=advantages.spread(sample.reward or 0.0, sample))
