"""SAO, single-rollout asynchronous optimisation (arXiv 2607.07508): one judged rollout is a whole step, with no group and no barrier.

L = mean_t[−sg(f(r_t))·A_t·log π(y_t)], r = exp(log π − log q), f(r) = r where 1 − ε_l < r < 1 + ε_h, else 0. A_t is GAE over the generated
tokens with λ by the length; the critic's own λ is 1. Public settings: ε 0.3 / 5.0 for reasoning, 0.8 / 3.0 for coding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import Field
from torch import Tensor

from reef.training.losses import critic, policy
from reef.training.losses.contract import CriticPolicy, Inputs, Loss, Need, NoOptions, Prepared
from reef.training.losses.masks import log_ratio, mean_B, ratio_metrics
from reef.training.sample import Sample


def sao_loss(logprobs_BT: Tensor, *, old_logprobs_BT: Tensor, mask_BT: Tensor, advantages_BT: Tensor, low: float, high: float) -> Tensor:
    """The loss of each sample: (B,).

    Args:
        logprobs_BT: log π of the tokens, natural; the only one a gradient reaches.
        old_logprobs_BT: log q, as recorded.
        mask_BT: bool, True on generated tokens.
        low: ε_l.
        high: ε_h.
    """
    log_ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    return mean_B(policy.masked_gradient(logprobs_BT, log_ratio_BT, advantages_BT, low=low, high=high), mask_BT)


class SAO(Loss):
    """The loss of SAO, with its critic."""

    class Options(NoOptions):
        """ε of the trusted range, and the critic."""

        low: float = Field(0.8, gt=0.0, le=1.0, description="ε_l: a token's ratio has to be above 1 − low.")
        high: float = Field(3.0, gt=0.0, description="ε_h: a token's ratio has to be below 1 + high.")
        gamma: float = Field(1.0, ge=0.0, le=1.0, description="What a later reward is worth.")
        critic_updates: int = Field(2, ge=1, description="Updates of the critic for each one of the policy.")
        warm_up_steps: int = Field(10, ge=0, description="First steps of a chain in which the critic alone learns.")

    name = "sao"
    options: Options

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.VALUES})

    @property
    def critic(self) -> CriticPolicy:  # type: ignore[override]
        """As the options say."""
        return CriticPolicy(updates=self.options.critic_updates, warm_up_steps=self.options.warm_up_steps)

    def _prepare(
        self,
        samples: Sequence[Sample],
        *,
        values: Sequence[Sequence[float]] | None,
        base_logprobs: Sequence[Sequence[float]] | None,
        skipped: Counter[str],
    ) -> Prepared:
        return critic.prepare(samples, values=values or (), gamma=self.options.gamma, actor_lam=None, skipped=skipped)

    def _compute(self, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        assert inputs.advantages_BT is not None
        low, high = self.options.low, self.options.high
        loss_B = sao_loss(
            inputs.logprobs_BT,
            old_logprobs_BT=inputs.old_logprobs_BT,
            mask_BT=inputs.mask_BT,
            advantages_BT=inputs.advantages_BT,
            low=low,
            high=high,
        )
        log_ratio_BT = log_ratio(inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.mask_BT)
        return loss_B, ratio_metrics(log_ratio_BT, inputs.mask_BT, low=low, high=high)
