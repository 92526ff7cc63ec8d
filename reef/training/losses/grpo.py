"""GRPO (arXiv 2402.03300): the advantage of an attempt is its reward beside those of its siblings; no critic.

Per sample mean_t[surrogate_t + kl·KL_t], with SAO's mask of the ratio (arXiv 2607.07508) or the paper's own clipping as the surrogate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import Tensor

from reef.errors import ConfigError
from reef.training.losses import advantages, policy
from reef.training.losses.contract import Inputs, Loss, Need, NoOptions, Prepared
from reef.training.losses.masks import log_ratio, mean_B, ratio_metrics
from reef.training.sample import Sample


def grpo_loss(
    logprobs_BT: Tensor,
    *,
    old_logprobs_BT: Tensor,
    mask_BT: Tensor,
    advantages_BT: Tensor,
    low: float,
    high: float,
    surrogate: Literal["mask", "clip"] = "mask",
    base_logprobs_BT: Tensor | None = None,
    kl: float = 0.0,
) -> Tensor:
    """The loss of each sample: (B,).

    Args:
        logprobs_BT: log π of the tokens, natural; the only one a gradient reaches.
        surrogate: ``mask``: −sg(f(r))·A·log π; ``clip``: −min(r·A, clip(r)·A).
        base_logprobs_BT: log-probabilities under the base model, where ``kl`` is not zero.
        kl: weight of the divergence from the base model.
    """
    log_ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    if surrogate == "mask":
        loss_BT = policy.masked_gradient(logprobs_BT, log_ratio_BT, advantages_BT, low=low, high=high)
    else:
        loss_BT = policy.clipped(log_ratio_BT, advantages_BT, low=low, high=high)
    if kl and base_logprobs_BT is not None:
        loss_BT = loss_BT + kl * policy.kl_to_base(logprobs_BT, base_logprobs_BT.detach())
    return mean_B(loss_BT, mask_BT)


def prepare_groups(samples: Sequence[Sample], *, normalise: bool, skipped: Counter[str]) -> Prepared:
    """Give each sample its group's advantage; groups that say nothing are counted, and so are samples nobody judged."""

    def compute(rewards_N: Tensor) -> Tensor:
        return advantages.group_advantages(rewards_N, normalise=normalise)

    return Prepared.of(advantages.by_group(samples, compute, skipped=skipped), skipped=skipped)


class GRPO(Loss):
    """The loss of GRPO."""

    class Options(NoOptions):
        """The surrogate and its range."""

        surrogate: Literal["mask", "clip"] = Field("mask", description="What is done about tokens whose ratio left the range.")
        low: float = Field(0.2, gt=0.0, le=1.0, description="The range of the ratio begins at 1 − low.")
        high: float = Field(0.2, gt=0.0, description="The range of the ratio ends at 1 + high.")
        normalise: bool = Field(True, description="Divide advantages by the deviation of the group's rewards.")
        kl: float = Field(0.0, ge=0.0, description="Weight of the divergence from the base model.")

    name = "grpo"
    options: Options

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.BASE_LOGPROBS}) if self.options.kl else frozenset()

    def _prepare(
        self,
        samples: Sequence[Sample],
        *,
        values: Sequence[Sequence[float]] | None,
        base_logprobs: Sequence[Sequence[float]] | None,
        skipped: Counter[str],
    ) -> Prepared:
        return prepare_groups(samples, normalise=self.options.normalise, skipped=skipped)

    def _compute(self, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        assert inputs.advantages_BT is not None
        if self.options.kl and inputs.base_logprobs_BT is None:
            raise ConfigError("grpo with kl needs base_logprobs", hint="Compute what Loss.needs names.")
        low, high = self.options.low, self.options.high
        loss_B = grpo_loss(
            inputs.logprobs_BT,
            old_logprobs_BT=inputs.old_logprobs_BT,
            mask_BT=inputs.mask_BT,
            advantages_BT=inputs.advantages_BT,
            low=low,
            high=high,
            surrogate=self.options.surrogate,
            base_logprobs_BT=inputs.base_logprobs_BT,
            kl=self.options.kl,
        )
        log_ratio_BT = log_ratio(inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.mask_BT)
        return loss_B, ratio_metrics(log_ratio_BT, inputs.mask_BT, low=low, high=high)
