"""Advantages: how much better a token was than expected. Computed once a step, in float64, without a gradient."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from reef.training.sample import Sample


def gae(values_T: Tensor, mask_T: Tensor, *, reward: float, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimation (arXiv 1506.02438) over the generated tokens alone: (T,), zero elsewhere.

    δ_i = R_i + γ·V_{i+1} − V_i and A_i = δ_i + γλ·A_{i+1}, where i + 1 is the *next generated* token: what a tool or a user said in
    between is skipped, as SAO does (arXiv 2607.07508). After the last one V and A are zero; R is ``reward`` there and zero before.

    Args:
        values_T: the critic's value of the state in which each token was generated.
        mask_T: bool.
    """
    values = values_T[mask_T].tolist()
    advantages, following, value_after = [0.0] * len(values), 0.0, 0.0
    for place in range(len(values) - 1, -1, -1):
        given = reward if place == len(values) - 1 else 0.0
        following = given + gamma * value_after - values[place] + gamma * lam * following
        value_after = values[place]
        advantages[place] = following
    spread_T = torch.zeros_like(values_T)
    spread_T[mask_T] = torch.tensor(advantages, dtype=values_T.dtype)
    return spread_T


def actor_lambda(length: int) -> float:
    """λ of the actor for so many generated tokens: clip(1 − 1/(1.5·length), 0, 1) (arXiv 2607.07508)."""
    return min(1.0, max(0.0, 1.0 - 1.0 / (1.5 * length)))


def group_advantages(rewards_N: Tensor, *, normalise: bool = True) -> Tensor:
    """Rewards of the attempts at one prompt minus their mean, over their standard deviation (arXiv 2402.03300): (N,).

    The deviation is that of the N rewards themselves, not an estimate for more. Zero where all are equal.

    Args:
        normalise: False leaves out the division (arXiv 2503.20783).
    """
    if rewards_N.max() == rewards_N.min():
        return torch.zeros_like(rewards_N)
    scale = rewards_N.abs().max()  # squares of very large and very small rewards would overflow or vanish
    centred_N = rewards_N / scale - (rewards_N / scale).mean()
    return centred_N / centred_N.pow(2).mean().sqrt() if normalise else centred_N * scale


def spread(value: float, sample: Sample) -> tuple[float, ...]:
    """One advantage for each generated token, zero elsewhere."""
    return tuple(value if generated else 0.0 for generated in sample.mask)


def groups_of(samples: Sequence[Sample]) -> list[list[int]]:
    """Places of the samples that are siblings, group by group in the order they begin; an attempt without a group is one of its own."""
    groups: dict[object, list[int]] = {}
    for place, sample in enumerate(samples):
        key = ("group", sample.group) if sample.group else ("rollout", sample.rollout or place)
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def attempts_of(samples: Sequence[Sample], group: Sequence[int]) -> list[list[int]]:
    """Places of a group's samples, attempt by attempt: one that was split into several samples is one attempt."""
    attempts: dict[object, list[int]] = {}
    for place in group:
        attempts.setdefault(samples[place].rollout or place, []).append(place)
    return list(attempts.values())


def by_group(samples: Sequence[Sample], compute: Callable[[Tensor], Tensor], *, skipped: Counter[str]) -> list[Sample | None]:
    """Each judged sample with the advantage that ``compute`` gives its attempt beside those of its siblings; None for those left out.

    A sample that brings advantages keeps them, and is nobody's sibling.

    Args:
        compute: from the rewards of a group's attempts, (N,), to their advantages.
        skipped: counts on.
    """
    done: list[Sample | None] = [sample if sample.advantages is not None else None for sample in samples]
    unjudged = sum(sample.reward is None and sample.advantages is None for sample in samples)
    judged = [place for place, sample in enumerate(samples) if sample.reward is not None and sample.advantages is None]
    skipped["no_reward"] += unjudged
    for group in groups_of([samples[place] for place in judged]):
        attempts = attempts_of(samples, [judged[member] for member in group])
        rewards = [samples[attempt[0]].reward or 0.0 for attempt in attempts]
        if reason := why_without_signal(rewards):
            skipped[reason] += len(group)
            continue
        for attempt, advantage in zip(attempts, compute(torch.tensor(rewards, dtype=torch.float64)).tolist(), strict=True):
            for place in attempt:
                done[place] = samples[place].replace(advantages=spread(advantage, samples[place]))
    return done


def why_without_signal(rewards: Sequence[float]) -> str:
    """Why the rewards of a group say nothing about which attempt is better; empty where they do."""
    if len(rewards) < 2:
        return "alone_in_group"
    if not all(map(math.isfinite, rewards)):
        return "not_finite"
    return "equal_rewards" if min(rewards) == max(rewards) else ""
