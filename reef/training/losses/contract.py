"""What a loss is to a trainer: what it needs, how samples are made ready for it, and the number that is minimised.

Shapes are in names: B samples, T token positions, V the vocabulary, K the likeliest tokens. T may count every position of a sequence or
the generated ones alone: a loss looks only where the mask is True, and everything stands at the token it is about, so a trainer shifts its
logits once (the logits that predict ``tokens[t]`` stand at t).

A step is: :meth:`Loss.prepare` over all its samples, then :meth:`Loss.__call__` micro-batch by micro-batch, each one's
:meth:`Output.total` backpropagated. The sum of the totals is the loss of the step however it was cut.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from reef.training.sample import InvalidSample, Sample


class Need(StrEnum):
    """What a trainer has to compute beside the log-probabilities of the tokens."""

    VALUES = "values"
    """A critic's values, for :meth:`Loss.prepare`."""
    BASE_LOGPROBS = "base_logprobs"
    """Log-probabilities of the tokens under the base model, for :meth:`Loss.prepare` and in :class:`Inputs`."""
    LOGITS = "logits"
    TEACHER_LOGITS = "teacher_logits"
    TEACHER_LOGPROBS = "teacher_logprobs"
    """Of the sampled tokens alone."""


@dataclass(frozen=True, slots=True)
class TeacherPolicy:
    """Which weights read :attr:`Sample.teacher <reef.training.sample.Sample.teacher>`."""

    kind: Literal["ema", "frozen"]
    """``ema``: an average of the student's weights; ``frozen``: weights that never move, the base model's or others the recipe names."""
    rate: float = 0.0
    """Of an average: teacher ← (1 − rate)·teacher + rate·student after each update."""


@dataclass(frozen=True, slots=True)
class CriticPolicy:
    """How the value head is trained beside the policy. It starts at zero."""

    updates: int = 2
    """Of the critic for each one of the policy."""
    warm_up_steps: int = 10
    """First steps of a chain in which the critic alone learns."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The samples of a step that carry a signal, with advantages, and how many do not and why."""

    samples: tuple[Sample, ...]
    """In the order in which they came."""
    places: tuple[int, ...]
    """Where each of them stood among those that :meth:`Loss.prepare` got."""
    skipped: Counter[str]
    returns: tuple[tuple[float, ...], ...] = ()
    """What the critic should have said, one row per sample and one number per token; empty where the loss has no critic."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        done: Sequence[Sample | None],
        *,
        skipped: Counter[str],
        returns: Sequence[Sequence[float]] = (),
        metrics: Mapping[str, float] | None = None,
        by_teacher: bool = False,
    ) -> Prepared:
        """What is left of ``done``, where None stands for a sample that was counted as skipped before.

        Samples whose advantages are all zero would make a silent zero step: they are counted here, and so are those that are not finite.

        Args:
            by_teacher: a sample that has a teacher has its signal there.
        """
        places = []
        for place, sample in enumerate(done):
            if sample is None:
                continue
            if not all(map(math.isfinite, sample.advantages or ())):
                skipped["not_finite"] += 1
            elif sample.advantages is not None and not any(sample.advantages) and not (by_teacher and sample.teacher):
                skipped["no_signal"] += 1
            else:
                places.append(place)
        return cls(
            samples=tuple(sample for place in places if (sample := done[place]) is not None),
            places=tuple(places),
            skipped=+skipped,
            returns=tuple(tuple(returns[place]) for place in places) if returns else (),
            metrics=metrics or {},
        )


@dataclass(frozen=True, slots=True)
class Inputs:
    """One micro-batch, padded. Where a mask is False anything finite may stand."""

    logprobs_BT: Tensor
    """log π of the tokens; natural, with the gradient."""
    old_logprobs_BT: Tensor
    mask_BT: Tensor
    """bool."""
    advantages_BT: Tensor | None = None
    weights_B: Tensor | None = None
    """:attr:`Sample.weight`; None: ones."""
    base_logprobs_BT: Tensor | None = None
    logits_BTV: Tensor | None = None
    """With the gradient; need not be normalised."""
    teacher_logits_BTV: Tensor | None = None
    teacher_logprobs_BT: Tensor | None = None
    taught_B: Tensor | None = None
    """bool: which samples have a teacher; None: all."""
    top_ids_BTK: Tensor | None = None
    """:attr:`Sample.top`, where it was kept."""
    top_logprobs_BTK: Tensor | None = None

    def only(self, keep_B: Tensor) -> Inputs:
        """The same with the other samples' masks empty and their numbers zero, so that nothing of theirs reaches a gradient."""
        changed = {}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value is not None and value.is_floating_point():
                changed[each.name] = value.masked_fill(~keep_B.reshape(-1, *[1] * (value.dim() - 1)), 0.0)
        return dataclasses.replace(self, **changed, mask_BT=self.mask_BT & keep_B[:, None])


@dataclass(frozen=True, slots=True)
class Output:
    """The loss of a micro-batch's samples."""

    loss_B: Tensor
    """Weighted; zero, without a gradient, where :attr:`used_B` is False."""
    used_B: Tensor
    """bool: samples with a generated token and a finite loss."""
    skipped: Counter[str]
    metrics: Mapping[str, float]
    """Sums over the used samples of each one's mean over its tokens: divide by their number."""
    reduction: Literal["mean", "sum"]

    def total(self, *, samples: int) -> Tensor:
        """The micro-batch's part of the step's loss.

        Args:
            samples: in all micro-batches of the step together.
        """
        return self.loss_B.sum() / (samples if self.reduction == "mean" else 1)


class NoOptions(BaseModel):
    """Options of a loss that has none; the base of those that have some."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Loss(ABC):
    """One method's loss. Keeps no state.

    Args:
        options: an instance of :attr:`Options`.
    """

    name: ClassVar[str]
    Options: ClassVar[type[NoOptions]] = NoOptions
    reduction: ClassVar[Literal["mean", "sum"]] = "mean"
    """Over the samples of a step."""
    teacher: TeacherPolicy | None = None
    critic: CriticPolicy | None = None

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    @property
    def needs(self) -> frozenset[Need]:
        """What has to be computed for it."""
        return frozenset()

    def prepare(
        self,
        samples: Sequence[Sample],
        *,
        values: Sequence[Sequence[float]] | None = None,
        base_logprobs: Sequence[Sequence[float]] | None = None,
    ) -> Prepared:
        """Leave out what cannot be learned from, and give the rest its advantages. Those a sample brings are kept.

        Args:
            samples: all of one step: siblings must come together.
            values: of each token of each sample, where the loss needs :attr:`Need.VALUES`: of the state in which it was generated.
            base_logprobs: of each token of each sample, where it needs :attr:`Need.BASE_LOGPROBS`.
        """
        skipped: Counter[str] = Counter()
        kept, places = [], []
        for place, sample in enumerate(samples):
            if reason := self._unusable(sample):
                skipped[reason] += 1
            else:
                kept.append(sample)
                places.append(place)
        prepared = self._prepare(
            kept,
            values=_pick(values, places, kept, name=Need.VALUES, needed=Need.VALUES in self.needs),
            base_logprobs=_pick(base_logprobs, places, kept, name=Need.BASE_LOGPROBS, needed=Need.BASE_LOGPROBS in self.needs),
            skipped=skipped,
        )
        return dataclasses.replace(prepared, places=tuple(places[place] for place in prepared.places))

    def __call__(self, inputs: Inputs) -> Output:
        """The loss of one micro-batch. A sample whose loss is not finite is left out and counted.

        Its gradient at the inputs is zero then; a forward pass that made the number may still hand a NaN on (0 · NaN), so a trainer that
        finds ``not_finite`` in :attr:`Output.skipped` computes the micro-batch again without the sample, or gives up.
        """
        skipped: Counter[str] = Counter()
        alive_B = inputs.mask_BT.any(dim=1)
        if empty := int((~alive_B).sum()):
            skipped["empty_mask"] += empty
        loss_B, metrics_B = self._compute(inputs if not empty else inputs.only(alive_B))
        finite_B = torch.isfinite(loss_B.detach())
        if broken := int((alive_B & ~finite_B).sum()):
            skipped["not_finite"] += broken
            alive_B = alive_B & finite_B
            loss_B, metrics_B = self._compute(inputs.only(alive_B))
        if inputs.weights_B is not None:
            loss_B = loss_B * inputs.weights_B
        loss_B = torch.where(alive_B, loss_B, torch.zeros_like(loss_B))
        sums = {name: float(value_B.detach()[alive_B].sum()) for name, value_B in metrics_B.items()}
        return Output(loss_B=loss_B, used_B=alive_B, skipped=skipped, metrics=sums, reduction=self.reduction)

    def _unusable(self, sample: Sample) -> str:
        """Why a sample cannot be learned from; empty where it can."""
        return "" if any(sample.mask) else "empty_mask"

    @abstractmethod
    def _prepare(
        self,
        samples: Sequence[Sample],
        *,
        values: Sequence[Sequence[float]] | None,
        base_logprobs: Sequence[Sequence[float]] | None,
        skipped: Counter[str],
    ) -> Prepared:
        """:meth:`prepare` of samples that can be learned from; ``skipped`` counts on, places are among ``samples``."""

    @abstractmethod
    def _compute(self, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each sample without its weight, shape (B,), and figures of the same shape."""


def _pick(
    rows: Sequence[Sequence[float]] | None, places: Sequence[int], samples: Sequence[Sample], *, name: str, needed: bool
) -> list[Sequence[float]] | None:
    if rows is None:
        if needed and samples:
            raise InvalidSample(f"the loss needs {name} to prepare its samples", hint="Compute what Loss.needs names.")
        return None
    picked = [rows[place] for place in places]
    if [len(row) for row in picked] != [len(sample.tokens) for sample in samples]:
        raise InvalidSample(f"the {name} do not match the tokens of the samples", hint="Give one number per token.")
    return picked
