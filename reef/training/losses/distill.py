"""The distillation family: the student generates, a teacher that sees more says what it would have said, token by token.

Sample loss = mean_t[min(π/q, cap)·D_t], D a divergence between teacher and student at each generated position; the ratio to the policy that
sampled is a constant to the gradient. Three settings have names:

* SDFT (arXiv 2601.19897): the teacher sees a demonstration; forward KL, full vocabulary, teacher an average (0.01), cap 2 per sequence.
* SDPO (arXiv 2601.20802): the teacher sees a sibling that succeeded; JSD_0.5 on the student's likeliest 100 tokens and the rest as one,
  teacher an average (0.05), cap 2 per token.
* OPD, on-policy distillation: a frozen teacher; reverse KL of the sampled token alone. Its value log π − log t estimates the divergence,
  but the gradient of that value does not: the loss is −min(π/q, cap)·sg(log t − log π)·log π, the gradient of which is the divergence's
  on average.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from reef.errors import ConfigError
from reef.training.losses import divergence
from reef.training.losses.contract import Inputs, Loss, Need, NoOptions, Prepared, TeacherPolicy
from reef.training.losses.masks import log_ratio, mean_B
from reef.training.sample import Sample


def importance(
    logprobs_BT: Tensor, *, old_logprobs_BT: Tensor, mask_BT: Tensor, cap: float | None, by: Literal["token", "sequence"]
) -> Tensor:
    """min(π/q, cap), without a gradient: (B, T). Of each token, or of the sequence: the product over its generated tokens."""
    log_ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, mask_BT).detach()
    if by == "sequence":
        log_ratio_BT = log_ratio_BT.sum(dim=1, keepdim=True).expand_as(log_ratio_BT)
    return log_ratio_BT.exp() if cap is None else log_ratio_BT.exp().clamp(max=cap)


def distill_loss(divergence_BT: Tensor, *, importance_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """mean_t[min(π/q, cap)·D_t] of each sample: (B,). A gradient reaches the divergence alone."""
    return mean_B(importance_BT.detach() * divergence_BT, mask_BT)


def sampled_loss(logprobs_BT: Tensor, *, teacher_logprobs_BT: Tensor, importance_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """mean_t[−min(π/q, cap)·sg(log t − log π)·log π] of each sample: (B,). A gradient reaches ``logprobs_BT`` alone."""
    advantages_BT = (teacher_logprobs_BT - logprobs_BT).detach()
    return mean_B(-importance_BT.detach() * advantages_BT * logprobs_BT, mask_BT)


class Distill(Loss):
    """Distillation with every choice open. What a sample's teacher reads, its recipe says."""

    class Options(NoOptions):
        """Divergence, vocabulary, teacher and cap."""

        divergence: Literal["forward_kl", "reverse_kl", "jsd"] = Field("forward_kl", description="Between teacher and student.")
        beta: float = Field(0.5, gt=0.0, lt=1.0, description="The teacher's share in the middle of jsd.")
        vocabulary: Literal["full", "top", "sampled"] = Field("full", description="Which tokens are compared at each position.")
        top_k: int = Field(100, ge=1, description="How many of the student's likeliest tokens (top).")
        cap: float | None = Field(2.0, gt=0.0, description="Most that the ratio to the policy which sampled may weigh; null: no bound.")
        cap_by: Literal["token", "sequence"] = Field("token", description="What the ratio is of.")
        teacher: Literal["ema", "frozen"] = Field("ema", description="An average of the student, or weights that never move.")
        rate: float = Field(0.01, ge=0.0, le=1.0, description="Of the average, after each update.")

        @model_validator(mode="after")
        def _sampled_is_reverse(self) -> Self:
            if self.vocabulary == "sampled" and self.divergence != "reverse_kl":
                raise ValueError("the sampled token alone gives the reverse_kl and no other divergence")
            return self

    name = "distill"
    options: Options

    @property
    def needs(self) -> frozenset[Need]:
        if self.options.vocabulary == "sampled":
            return frozenset({Need.TEACHER_LOGPROBS})
        return frozenset({Need.LOGITS, Need.TEACHER_LOGITS})

    @property
    def teacher(self) -> TeacherPolicy:  # type: ignore[override]
        """As the options say."""
        frozen = self.options.teacher == "frozen"
        return TeacherPolicy("frozen") if frozen else TeacherPolicy("ema", rate=self.options.rate)

    def _prepare(
        self,
        samples: Sequence[Sample],
        *,
        values: Sequence[Sequence[float]] | None,
        base_logprobs: Sequence[Sequence[float]] | None,
        skipped: Counter[str],
    ) -> Prepared:
        done = [sample if sample.teacher is not None else None for sample in samples]
        skipped["no_teacher"] += done.count(None)
        return Prepared.of(done, skipped=skipped)

    def _compute(self, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        options = self.options
        importance_BT = importance(
            inputs.logprobs_BT, old_logprobs_BT=inputs.old_logprobs_BT, mask_BT=inputs.mask_BT, cap=options.cap, by=options.cap_by
        )
        metrics = {"importance": mean_B(importance_BT, inputs.mask_BT)}
        if options.vocabulary == "sampled":
            if inputs.teacher_logprobs_BT is None:
                raise ConfigError(f"{self.name} needs teacher_logprobs", hint="Compute what Loss.needs names.")
            teacher_BT = inputs.teacher_logprobs_BT.detach()
            loss_B = sampled_loss(inputs.logprobs_BT, teacher_logprobs_BT=teacher_BT, importance_BT=importance_BT, mask_BT=inputs.mask_BT)
            return loss_B, metrics | {"divergence": mean_B(inputs.logprobs_BT.detach() - teacher_BT, inputs.mask_BT)}
        if inputs.logits_BTV is None or inputs.teacher_logits_BTV is None:
            raise ConfigError(f"{self.name} needs logits and teacher_logits", hint="Compute what Loss.needs names.")
        divergence_BT = self._divergence(inputs.logits_BTV, inputs.teacher_logits_BTV)
        loss_B = distill_loss(divergence_BT, importance_BT=importance_BT, mask_BT=inputs.mask_BT)
        return loss_B, metrics | {"divergence": mean_B(divergence_BT, inputs.mask_BT)}

    def _divergence(self, logits_BTV: Tensor, teacher_logits_BTV: Tensor) -> Tensor:
        student, teacher = divergence.log_probabilities(logits_BTV), divergence.log_probabilities(teacher_logits_BTV.detach())
        if self.options.vocabulary == "top":
            ids_BTK = student.detach().topk(min(self.options.top_k, student.shape[-1]), dim=-1).indices
            student, teacher = divergence.bucketed(student, ids_BTK), divergence.bucketed(teacher, ids_BTK)
        if self.options.divergence == "jsd":
            return divergence.jsd(student, teacher, beta=self.options.beta)
        return (divergence.forward_kl if self.options.divergence == "forward_kl" else divergence.reverse_kl)(student, teacher)


class SDFT(Distill):
    """Self-distillation from a demonstration."""

    class Options(Distill.Options):
        """The published setting."""

        cap_by: Literal["token", "sequence"] = "sequence"

    name = "sdft"
    options: Options


class SDPO(Distill):
    """Self-distillation from a sibling that succeeded."""

    class Options(Distill.Options):
        """The published setting."""

        divergence: Literal["forward_kl", "reverse_kl", "jsd"] = "jsd"
        vocabulary: Literal["full", "top", "sampled"] = "top"
        rate: float = Field(0.05, ge=0.0, le=1.0)

    name = "sdpo"
    options: Options


class OPD(Distill):
    """On-policy distillation from a frozen teacher."""

    class Options(Distill.Options):
        """The published setting."""

        divergence: Literal["forward_kl", "reverse_kl", "jsd"] = "reverse_kl"
        vocabulary: Literal["full", "top", "sampled"] = "sampled"
        cap: float | None = Field(None, gt=0.0)
        teacher: Literal["ema", "frozen"] = "frozen"

    name = "opd"
    options: Options
