"""The recipe of OPD; the loss is in :mod:`reef.training.losses.distill`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from reef.learner import unreported
from reef.learner.ground import TrainingGround
from reef.learner.recipe import Workbench
from reef.learner.teaching import same_context
from reef.learner.weights import UnreportedRecipe, WeightOptions
from reef.training import batches
from reef.training.sample import Sample


class OPDOptions(WeightOptions):
    """``reef.options`` of this recipe."""

    teacher: str = Field(min_length=1, description="The stronger model, named as in `serving.vllm.model`; its tokens are the student's.")
    idle_s: float = Field(60.0, ge=0, description="How long after its last request a session is over.")


class OPDRecipe(UnreportedRecipe):
    """See :class:`reef.learner.weights.UnreportedRecipe`; the options are :class:`OPDOptions`."""

    name = "opd"
    loss = "opd"
    Options = OPDOptions
    settings: OPDOptions

    @property
    def idle_s(self) -> float:  # type: ignore[override]
        return self.settings.idle_s

    def attempts_in(self, bench: Workbench, *, now: float, after: int) -> unreported.Unreported:
        return unreported.sessions(bench, recipe=self.name, idle_s=self.idle_s, now=now, after=after)

    def samples(self, batch: batches.Batch, *, bench: Workbench) -> Sequence[Sample]:
        return [same_context(sample) for sample in batch.samples]

    def teacher(self, ground: TrainingGround) -> Path | None:
        return ground.folder(self.settings.teacher)
