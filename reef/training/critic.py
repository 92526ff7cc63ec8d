"""A value head: what a state of the policy is worth, told from its hidden state by one linear layer that starts at zero.

The hidden states are taken without a gradient, so the head never pulls at the policy. It is trained here, and kept with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from reef.training.distributed import Group
from reef.training.losses.critic import critic_loss
from reef.training.sample import Sample
from reef.training.state import optimizer_tensors, put_into, restore_optimizer

Key = tuple[tuple[int, ...], tuple[bool, ...]]
"""Tokens and mask: what a forward pass depends on, and nothing that is found out later."""


def key_of(sample: Sample) -> Key:
    """See :data:`Key`."""
    return sample.tokens, sample.mask


class Critic:
    """The value head and its optimizer. Every rank has the whole of it, and the states of its own samples."""

    def __init__(self, width: int, *, learning_rate: float, group: Group, device: torch.device, kept: Mapping[str, Tensor]) -> None:
        self._head = torch.nn.Linear(width, 1, device=device)
        torch.nn.init.zeros_(self._head.weight)
        torch.nn.init.zeros_(self._head.bias)
        self._group = group
        self._device = device
        self._named = dict(self._head.named_parameters())
        self._optimizer = torch.optim.AdamW(self._named.values(), lr=learning_rate, weight_decay=0.0)
        self._states: dict[Key, Tensor] = {}
        if kept:
            put_into({name: each.detach() for name, each in self._named.items()}, {name: kept[name] for name in self._named}, what="critic")
            moments = {name.removeprefix("optimizer."): each for name, each in kept.items() if name.startswith("optimizer.")}
            restore_optimizer(self._optimizer, self._named, moments, what="optimizer of the critic")

    def look_at(self, sample: Sample, states_GH: Tensor) -> None:
        """Remember the state before each generated token of a sample."""
        self._states[key_of(sample)] = states_GH.cpu()

    def values(self, samples: Sequence[Sample]) -> list[list[float]]:
        """What each token's state is worth, 0.0 where it was not generated. A collective."""
        with torch.no_grad():
            own = {key: self._head(states_GH.to(self._device)).squeeze(-1).tolist() for key, states_GH in self._states.items()}
        known: dict[Key, list[float]] = {}
        for part in self._group.gather(own):
            known |= part
        return [_spread(known[key_of(sample)], sample) for sample in samples]

    def learn(self, samples: Sequence[Sample], returns: Sequence[Sequence[float]], *, updates: int) -> float:
        """Move the values towards the returns, one per token; the last update's loss, mean over the samples. A collective."""
        loss = torch.zeros(1, device=self._device)
        for _ in range(updates):
            self._optimizer.zero_grad(set_to_none=False)
            loss = torch.zeros(1, device=self._device)
            for sample, row in zip(samples, returns, strict=True):
                if key_of(sample) in self._states:
                    part = self._loss(sample, row) / len(samples)
                    part.backward()
                    loss += part.detach()
            for parameter in self._named.values():
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                self._group.sum(parameter.grad)
            self._group.sum(loss)
            self._optimizer.step()
        return float(loss)

    def _loss(self, sample: Sample, row: Sequence[float]) -> Tensor:
        picked = [value for value, generated in zip(row, sample.mask, strict=True) if generated]
        values_1G = self._head(self._states[key_of(sample)].to(self._device)).squeeze(-1).unsqueeze(0)
        returns_1G = torch.tensor([picked], dtype=torch.float32, device=self._device)
        return critic_loss(values_1G, returns_1G, torch.ones_like(returns_1G, dtype=torch.bool)).sum()

    def tensors(self) -> dict[str, Tensor]:
        """All of it, to be kept."""
        moments = optimizer_tensors(self._optimizer, self._named)
        return {name: each.detach().cpu() for name, each in self._named.items()} | {
            f"optimizer.{name}": each for name, each in moments.items()
        }


def _spread(values: Sequence[float], sample: Sample) -> list[float]:
    each = iter(values)
    return [next(each) if generated else 0.0 for generated in sample.mask]
