"""TTT-Discover (arXiv 2601.16175): learn from the best of many attempts at one hard problem, by an entropic leave-one-out advantage.

Per group of N siblings: β ≥ 0 such that KL(softmax(β·r) ‖ uniform) = ln 2, and A_i = exp(β·r_i) / mean_{j≠i} exp(β·r_j) − 1. Per token:
d_t = log q − log π_base and A_t ← A + c·(mean(d) − d_t), mean over all tokens of the step. L = −Σ_t exp(log π − log q)·A_t, neither clipped
nor divided by the length. Public setting: LoRA of rank and α 32, Adam 4e-5 with 0.9/0.95.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from reef.errors import ConfigError
from reef.training.losses import advantages
from reef.training.losses.contract import Inputs, Loss, Need, NoOptions, Prepared
from reef.training.losses.masks import log_ratio, ratio_metrics, sum_B
from reef.training.sample import Sample

TARGET = math.log(2.0)
REACH = 0.9
"""Of the largest divergence that a group can have at all, ln(N / number of best ones), this share is aimed at where ln 2 is more: towards
the whole of it β grows without bound."""
_TIE = 1e-12
"""Rewards this close, beside the spread of their group, are one: a β that tells them apart would tell nothing else."""
_STEPS = 200
"""Halvings: enough to leave two neighbouring floats."""


def solve_beta(rewards_N: Tensor, *, target: float = TARGET, reach: float = REACH) -> float:
    """β ≥ 0 with KL(softmax(β·r) ‖ uniform) = ``target``, or ``reach`` of the most that is possible; 0 where all rewards are equal.

    The divergence grows with β, from 0 to ln(N / how many are best): found by bisection, in float64.
    """
    relative_N, spread = _relative(rewards_N)
    return 0.0 if spread == 0.0 else min(_solve(relative_N, target=target, reach=reach) / spread, sys.float_info.max)


def entropic_advantages(rewards_N: Tensor, *, target: float = TARGET, reach: float = REACH) -> Tensor:
    """A_i = exp(β·r_i) / mean_{j≠i} exp(β·r_j) − 1: (N,), float64. Zero where all rewards are equal, or there is but one."""
    relative_N, spread = _relative(rewards_N)
    if spread == 0.0:
        return torch.zeros_like(relative_N)
    weights_N = (_solve(relative_N, target=target, reach=reach) * relative_N).exp()
    others_N = torch.stack([torch.cat([weights_N[:place], weights_N[place + 1 :]]).mean() for place in range(len(weights_N))])
    return weights_N / others_N - 1.0  # the sum minus its own part would lose every digit where one weight outweighs the others


def discover_loss(logprobs_BT: Tensor, *, old_logprobs_BT: Tensor, mask_BT: Tensor, advantages_BT: Tensor) -> Tensor:
    """−Σ_t exp(log π − log q)·A_t of each sample: (B,). A gradient reaches ``logprobs_BT`` alone."""
    return sum_B(-log_ratio(logprobs_BT, old_logprobs_BT, mask_BT).exp() * advantages_BT, mask_BT)


class TTTDiscover(Loss):
    """The loss of TTT-Discover."""

    class Options(NoOptions):
        """The token stage."""

        kl: float = Field(0.0, ge=0.0, description="c, the weight of the pull to the base model.")

    name = "ttt_discover"
    reduction = "sum"
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
        done = advantages.by_group(samples, entropic_advantages, skipped=skipped)
        if self.options.kl and base_logprobs is not None:
            done = pulled_to_base(done, base_logprobs=base_logprobs, weight=self.options.kl, skipped=skipped)
        return Prepared.of(done, skipped=skipped)

    def _compute(self, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        if inputs.advantages_BT is None:
            raise ConfigError("ttt_discover needs advantages", hint="Build the inputs of samples that went through Loss.prepare.")
        loss_B = discover_loss(
            inputs.logprobs_BT, old_logprobs_BT=inputs.old_logprobs_BT, mask_BT=inputs.mask_BT, advantages_BT=inputs.advantages_BT
        )
        log_ratio_BT = log_ratio(inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.mask_BT)
        return loss_B, ratio_metrics(log_ratio_BT, inputs.mask_BT, low=1.0, high=math.inf)


def pulled_to_base(
    done: Sequence[Sample | None], *, base_logprobs: Sequence[Sequence[float]], weight: float, skipped: Counter[str]
) -> list[Sample | None]:
    """A_t + weight·(mean(d) − d_t), d_t = log q − log π_base, mean over the generated tokens of all samples that are left."""
    gaps: list[list[float]] = []
    kept: list[Sample | None] = []
    for sample, base in zip(done, base_logprobs, strict=True):
        gap = _gaps(sample, base) if sample is not None else []
        broken = not all(map(math.isfinite, gap))
        skipped["not_finite"] += broken
        gaps.append([] if broken else gap)
        kept.append(None if broken else sample)
    every = [value for gap in gaps for value in gap]
    mean = math.fsum(every) / len(every) if every else 0.0
    return [sample and _pulled(sample, gap, mean=mean, weight=weight) for sample, gap in zip(kept, gaps, strict=True)]


def _gaps(sample: Sample, base: Sequence[float]) -> list[float]:
    return [old - below for old, below, generated in zip(sample.old_logprobs, base, sample.mask, strict=True) if generated]


def _pulled(sample: Sample, gaps: Sequence[float], *, mean: float, weight: float) -> Sample:
    gap = iter(gaps)
    pairs = zip(sample.advantages or (), sample.mask, strict=True)
    return sample.replace(advantages=tuple(value + weight * (mean - next(gap)) if generated else 0.0 for value, generated in pairs))


def _relative(rewards_N: Tensor) -> tuple[Tensor, float]:
    """(r − max) / spread, in [−1, 0], and the spread max − min: β depends on the unit of the rewards, A_i does not."""
    rewards_N = rewards_N.to(torch.float64)
    if len(rewards_N) < 2 or rewards_N.max() == rewards_N.min():
        return rewards_N * 0.0, 0.0
    scale = rewards_N.abs().max()  # so that the difference of very large ones stays finite, and of very small ones other than zero
    below_N = rewards_N / scale - (rewards_N / scale).max()
    relative_N = below_N / -below_N.min()
    return relative_N.masked_fill(relative_N > -_TIE, 0.0), float(-below_N.min() * scale)


def _solve(relative_N: Tensor, *, target: float, reach: float) -> float:
    """β for rewards in [−1, 0] whose best is 0."""
    target = min(target, reach * math.log(len(relative_N) / int((relative_N == 0.0).sum())))
    low, high = 0.0, 1.0
    while _divergence(high * relative_N) < target:
        low, high = high, 2.0 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if _divergence(middle * relative_N) < target else (low, middle)
    return high


def _divergence(logits_N: Tensor) -> float:
    """KL(softmax ‖ uniform)."""
    logs_N = torch.log_softmax(logits_N, dim=0)
    return float((logs_N.exp() * logs_N).sum()) + math.log(len(logits_N))
