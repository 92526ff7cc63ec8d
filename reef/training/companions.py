"""Policies that are compared with: the base, a teacher that never moves, and one that follows the student as an average of its past."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from reef.training.distributed import whole
from reef.training.job import TrainingJob
from reef.training.microbatches import Reading
from reef.training.policy import Policy, open_frozen
from reef.training.state import put_into


class Fixed:
    """A policy that stays as it is, read without a gradient. A LoRA's base is the same model with the LoRA off: no second copy."""

    def __init__(self, job: TrainingJob, policy: Policy, *, teacher: bool) -> None:
        """
        Args:
            teacher: whether the job's own teacher is meant, where it has one.
        """
        folder = (job.teacher if teacher else None) or (None if policy.lora else job.base)
        self._policy = policy
        self._other = open_frozen(folder, policy=policy, dtype=job.settings.dtype) if folder is not None else None

    def logits(self, reading: Reading) -> Tensor:
        """Logits of the generated tokens, (B, G, V)."""
        with torch.no_grad():
            if self._other is not None:
                return self._other.read(reading)[0]
            with self._policy.as_base():
                return self._policy.read(reading)[0]


class Average:
    """An exponential moving average of what is trained. It is read by the same model, with its numbers put in for the time."""

    def __init__(self, policy: Policy, *, rate: float, kept: Mapping[str, Tensor]) -> None:
        """
        Args:
            rate: average ← (1 − rate)·average + rate·student, after each update.
            kept: the average so far; empty: it starts as the student is.
        """
        self._policy = policy
        self._rate = rate
        self._average = {name: parameter.detach().clone() for name, parameter in policy.trained.items()}
        if kept:
            put_into(self._average, kept, what="averaged teacher")

    def logits(self, reading: Reading) -> Tensor:
        """Logits of the generated tokens, (B, G, V). Not between a forward pass of the student and its backward pass."""
        with torch.no_grad(), self._put_in():
            return self._policy.read(reading)[0]

    def follow(self) -> None:
        """Move towards the student."""
        with torch.no_grad():
            for name, parameter in self._policy.trained.items():
                self._average[name].lerp_(parameter.detach(), self._rate)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, whole, to be kept. A collective."""
        return whole(self._average)

    @contextlib.contextmanager
    def _put_in(self) -> Iterator[None]:
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self._policy.trained.items():
            student = parameter.detach().clone()
            parameter.detach().copy_(self._average[name])
            self._average[name].copy_(student)
