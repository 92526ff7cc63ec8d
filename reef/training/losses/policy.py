"""Surrogates of a policy gradient, token by token. All are (B, T), meaningful where the mask is True, and to be minimised."""

from __future__ import annotations

import torch
from torch import Tensor


def trusted_ratio(log_ratio_BT: Tensor, *, low: float, high: float) -> Tensor:
    """f(r) = r where 1 − low < r < 1 + high, else 0, of r = exp(log π − log q); a constant to the gradient (arXiv 2607.07508)."""
    ratio_BT = log_ratio_BT.detach().exp()
    return torch.where((ratio_BT > 1.0 - low) & (ratio_BT < 1.0 + high), ratio_BT, torch.zeros_like(ratio_BT))


def masked_gradient(logprobs_BT: Tensor, log_ratio_BT: Tensor, advantages_BT: Tensor, *, low: float, high: float) -> Tensor:
    """−sg(f(r))·A·log π: the gradient of tokens whose ratio left the trusted range is zero."""
    return -trusted_ratio(log_ratio_BT, low=low, high=high) * advantages_BT * logprobs_BT


def clipped(log_ratio_BT: Tensor, advantages_BT: Tensor, *, low: float, high: float) -> Tensor:
    """−min(r·A, clip(r, 1 − low, 1 + high)·A), the clipped surrogate of PPO (arXiv 1707.06347). Any shape."""
    ratio_BT = log_ratio_BT.exp()
    return -torch.minimum(ratio_BT * advantages_BT, ratio_BT.clamp(1.0 - low, 1.0 + high) * advantages_BT)


def kl_to_base(logprobs_BT: Tensor, base_logprobs_BT: Tensor) -> Tensor:
    """π_base/π − log(π_base/π) − 1, the estimate of KL(π ‖ π_base) that GRPO adds to its loss (arXiv 2402.03300)."""
    difference_BT = base_logprobs_BT - logprobs_BT
    return difference_BT.exp() - difference_BT - 1.0
