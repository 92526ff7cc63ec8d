"""Advantages by a critic, shared by the methods that have one, and what the critic learns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from reef.training.losses import advantages
from reef.training.losses.contract import Prepared
from reef.training.losses.masks import mean_B
from reef.training.sample import Sample


def prepare(
    samples: Sequence[Sample],
    *,
    values: Sequence[Sequence[float]],
    gamma: float,
    actor_lam: float | None,
    skipped: Counter[str],
    critic_lam: float = 1.0,
) -> Prepared:
    """Give each judged sample its GAE advantages and its critic's targets, A(critic_lam) + V.

    Args:
        actor_lam: None: :func:`~reef.training.losses.advantages.actor_lambda` of the sample's length.
    """
    done: list[Sample | None] = []
    returns: list[Sequence[float]] = []
    for sample, row in zip(samples, values, strict=True):
        judged, targets = _judge(sample, row, gamma=gamma, actor_lam=actor_lam, critic_lam=critic_lam, skipped=skipped)
        done.append(judged)
        returns.append(targets)
    return Prepared.of(done, skipped=skipped, returns=returns)


def critic_loss(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Half the squared error of the values, mean over the generated tokens: (B,). Its gradient reaches ``values_BT`` alone."""
    return mean_B(0.5 * (values_BT - returns_BT.detach()) ** 2, mask_BT)


def _judge(
    sample: Sample, row: Sequence[float], *, gamma: float, actor_lam: float | None, critic_lam: float, skipped: Counter[str]
) -> tuple[Sample | None, Sequence[float]]:
    if sample.reward is None:
        skipped["no_reward"] += 1
        return None, ()
    values_T, mask_T = torch.tensor(row, dtype=torch.float64), torch.tensor(sample.mask)
    lam = advantages.actor_lambda(sample.generated) if actor_lam is None else actor_lam
    actor_T = advantages.gae(values_T, mask_T, reward=sample.reward, gamma=gamma, lam=lam)
    critic_T = advantages.gae(values_T, mask_T, reward=sample.reward, gamma=gamma, lam=critic_lam)
    targets_T = torch.where(mask_T, critic_T + values_T, torch.zeros_like(values_T))
    if not (torch.isfinite(actor_T).all() and torch.isfinite(targets_T).all()):
        skipped["not_finite"] += 1
        return None, ()
    own = sample.advantages is not None
    return (sample if own else sample.replace(advantages=tuple(actor_T.tolist()))), targets_T.tolist()
