"""PPO's clipped surrogate (arXiv 1707.06347), token by token: mean_t[−min(r_t·A_t, clip(r_t, 1 − ε_l, 1 + ε_h)·A_t)]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import Tensor

from reef.training.losses import advantages, critic, policy
from reef.training.losses.contract import CriticPolicy, Inputs, Loss, Need, NoOptions, Prepared
from reef.training.losses.grpo import prepare_groups
from reef.training.losses.masks import log_ratio, mean_B, ratio_metrics
from reef.training.sample import Sample


def ppo_clip_loss(
    logprobs_BT: Tensor, *, old_logprobs_BT: Tensor, mask_BT: Tensor, advantages_BT: Tensor, low: float, high: float
) -> Tensor:
    """The loss of each sample: (B,). A gradient reaches ``logprobs_BT`` alone, natural logarithms as the old ones."""
    log_ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    return mean_B(policy.clipped(log_ratio_BT, advantages_BT, low=low, high=high), mask_BT)


class PPOClip(Loss):
    """PPO-clip, with advantages by a critic, by the group, or the reward itself."""

    class Options(NoOptions):
        """The range, and where advantages come from."""

        low: float = Field(0.2, gt=0.0, le=1.0, description="The ratio is clipped to at least 1 − low.")
        high: float = Field(0.2, gt=0.0, description="The ratio is clipped to at most 1 + high.")
        advantage: Literal["critic", "group", "reward"] = Field("critic", description="Where advantages come from.")
        gamma: float = Field(1.0, ge=0.0, le=1.0, description="What a later reward is worth (critic).")
        lam: float = Field(0.95, ge=0.0, le=1.0, description="λ of the advantage estimate (critic).")

    name = "ppo_clip"
    options: Options

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.VALUES}) if self.options.advantage == "critic" else frozenset()

    @property
    def critic(self) -> CriticPolicy | None:  # type: ignore[override]
        """One update beside each of the policy, where advantages come from it."""
        return CriticPolicy(updates=1, warm_up_steps=0) if self.options.advantage == "critic" else None

    def _prepare(
        self,
        samples: Sequence[Sample],
        *,
        values: Sequence[Sequence[float]] | None,
        base_logprobs: Sequence[Sequence[float]] | None,
        skipped: Counter[str],
    ) -> Prepared:
        if self.options.advantage == "critic":
            lam, gamma = self.options.lam, self.options.gamma
            return critic.prepare(samples, values=values or (), gamma=gamma, actor_lam=lam, critic_lam=lam, skipped=skipped)
        if self.options.advantage == "group":
            return prepare_groups(samples, normalise=True, skipped=skipped)
        return prepare_rewards(samples, skipped=skipped)

    def _compute(self, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        assert inputs.advantages_BT is not None
        low, high = self.options.low, self.options.high
        loss_B = ppo_clip_loss(
            inputs.logprobs_BT,
            old_logprobs_BT=inputs.old_logprobs_BT,
            mask_BT=inputs.mask_BT,
            advantages_BT=inputs.advantages_BT,
            low=low,
            high=high,
        )
        log_ratio_BT = log_ratio(inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.mask_BT)
        return loss_B, ratio_metrics(log_ratio_BT, inputs.mask_BT, low=low, high=high)


def prepare_rewards(samples: Sequence[Sample], *, skipped: Counter[str]) -> Prepared:
    """Each sample's reward as the advantage of all its tokens."""
    done: list[Sample | None] = []
    for sample in samples:
        if sample.advantages is None and sample.reward is None:
            skipped["no_reward"] += 1
            done.append(None)
        elif sample.advantages is None and sample.reward is not None:
            done.append(sample.replace(advantages=advantages.spread(sample.reward, sample)))
        else:
            done.append(sample)
    return Prepared.of(done, skipped=skipped)
