"""Sums and means over the generated tokens of each sample."""

from __future__ import annotations

import torch
from torch import Tensor


def kept(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The values, and zero without a gradient where the mask is False: (B, T)."""
    return values_BT.masked_fill(~mask_BT, 0.0)


def sum_B(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum over the tokens of the mask: (B,)."""
    return kept(values_BT, mask_BT).sum(dim=1)


def mean_B(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the tokens of the mask, zero where there are none: (B,)."""
    return sum_B(values_BT, mask_BT) / mask_BT.sum(dim=1).clamp(min=1)


def log_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log π − log q, zero outside the mask, so that nothing there overflows: (B, T)."""
    return kept(logprobs_BT - old_logprobs_BT, mask_BT)


def ratio_metrics(log_ratio_BT: Tensor, mask_BT: Tensor, *, low: float, high: float) -> dict[str, Tensor]:
    """How far the policy went from the one that sampled: each (B,).

    ``kl`` is the estimate r − 1 − log r of KL(q ‖ π), never negative (J. Schulman, "Approximating KL divergence", 2020); ``outside`` the
    share of tokens whose ratio is not within 1 − low and 1 + high: those that are masked or may be clipped.
    """
    log_ratio_BT = log_ratio_BT.detach()
    ratio_BT = log_ratio_BT.exp()
    outside_BT = ((ratio_BT <= 1.0 - low) | (ratio_BT >= 1.0 + high)).to(ratio_BT.dtype)
    return {
        "kl": mean_B(torch.expm1(log_ratio_BT) - log_ratio_BT, mask_BT),
        "ratio": mean_B(ratio_BT, mask_BT),
        "outside": mean_B(outside_BT, mask_BT),
    }
