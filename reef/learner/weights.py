"""Recipes that train weights: select token-exact samples, have a candidate trained from the parent, publish it. A method says the rest.

:class:`WeightRecipe` is what a method derives from; ``recipes/`` has one package for each. torch is never imported in this process: the
trainer is a process of its own (:mod:`reef.learner.weights_step`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reef.errors import ConfigError, ProposalError, StaleHead
from reef.learner import unreported
from reef.learner.ground import TrainingGround
from reef.learner.recipe import Attempt, Batch, Proposal, Recipe, Selection, Unreleased, Workbench
from reef.learner.weights_step import Step, train
from reef.training import batches, batches_reader
from reef.training.sample import Sample
from reef.types import Component, Release

log = structlog.get_logger()

LATE_RECORDS = 1000


class Scored(BaseModel):
    """What a report holds for recipes that learn from scores."""

    score: float = Field(allow_inf_nan=False)


class WeightOptions(BaseModel):
    """``reef.options`` of every recipe that trains weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss: dict[str, Any] = Field(
        default_factory=dict, description="Options of the loss: the `Options` of its class in `reef.training.losses`."
    )
    max_tokens: int | None = Field(None, ge=2, description="Of one sample; a turn that would end beyond it is left out. Empty: no bound.")


@dataclass(frozen=True, slots=True)
class WeightBatch(Batch):
    """A batch with its samples, for the step that begins with its selection."""

    fresh: bool = True
    parent: int = 0
    """The release whose staleness was reckoned with."""
    found: batches.Batch = field(kw_only=True)

    @property
    def consumes(self) -> tuple[str, ...]:
        return self.found.reports


class WeightRecipe(Recipe):
    """One method that trains weights.

    A method sets :attr:`name`, :attr:`loss` and, where it needs them, the other class attributes, and overrides :meth:`read` (which
    attempts make a batch) and :meth:`samples` (what a teacher reads, what a judge says).

    Args:
        batch_size: attempts that make one step.
        options: as :attr:`Options` has them.

    Raises:
        ConfigError: an option is unknown or out of bounds.
    """

    component = Component.MODEL
    needs_tokens = True
    loss: ClassVar[str]
    """Name in :mod:`reef.training.losses`."""
    Options: ClassVar[type[WeightOptions]] = WeightOptions
    together: ClassVar[bool] = True
    """Whether the turns of a session that extend each other are one sample."""

    def __init__(self, *, batch_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(batch_size=batch_size, options=options)
        try:
            self.settings = self.Options.model_validate(dict(options))
        except ValidationError as error:
            problem = error.errors()[0]
            known = ", ".join(self.Options.model_fields)
            raise ConfigError(f"reef.options.{'.'.join(map(str, problem['loc']))}: {problem['msg']}", hint=f"Known: {known}.") from None
        self._fruitless: dict[str, Hashable] = {}

    def read(self, bench: Workbench, *, terms: batches.Terms) -> batches.Batch:
        """The next batch: here, the attempts that a report gave a score, oldest first."""
        return batches_reader.read(bench.store, bench.scenario, recipe=self.name, terms=terms, size=self.batch_size)

    def samples(self, batch: batches.Batch, *, bench: Workbench) -> Sequence[Sample]:
        """What is trained on of a batch: here, its samples as they are.

        Raises:
            ProposalError: none of it can be; the batch is consumed.
        """
        return batch.samples

    def teacher(self, ground: TrainingGround) -> Path | None:
        """The folder of a model to learn from that never moves; None where there is none but the base."""
        return None

    def sign(self, bench: Workbench) -> Hashable:
        """Changes when there may be more to select: here, with each report and each release."""
        newest = bench.store.reports(bench.scenario, limit=1)
        return bench.head and bench.head.step, newest[0].id if newest else ""

    def select(self, bench: Workbench) -> Selection:
        ground, head = _ground(bench), bench.head
        assert head is not None, "the loop says what serves"
        sign = self.sign(bench)
        if self._fruitless.get(bench.scenario) == sign:
            return Selection()
        terms = batches.Terms(
            parent=head.step,
            max_staleness=ground.max_staleness,
            max_tokens=self.settings.max_tokens,
            together=self.together,
            withheld=bench.withheld,
        )
        found = self.read(bench, terms=terms)
        if found.rollouts < self.batch_size or not found.samples:
            if not found.passed_over:
                self._fruitless[bench.scenario] = sign
            return Selection(passed_over=found.passed_over)
        self._fruitless.pop(bench.scenario, None)
        log.info("batch", scenario=bench.scenario, attempts=found.rollouts, samples=len(found.samples), left_out=dict(found.skipped))
        return Selection(WeightBatch((), parent=head.step, found=found), found.passed_over)

    def propose(self, batch: Batch, *, parent: Release, earlier: Sequence[Attempt], bench: Workbench) -> Proposal | Unreleased:
        assert isinstance(batch, WeightBatch), "the batch is the one that select gave"
        if batch.parent != parent.step:
            raise StaleHead(f"release {parent.step} serves since the batch was selected", hint="It is selected again.")
        samples = tuple(self.samples(batch.found, bench=bench))
        if not samples:
            raise ProposalError("no sample of the batch can be trained on", hint="The log says why each was left out.")
        ground = _ground(bench)
        step = Step(
            recipe=self.name,
            loss=self.loss,
            options=self.settings.loss,
            samples=samples,
            teacher=self.teacher(ground),
            told=told(batch.found),
        )
        return train(step, parent=parent, bench=bench, ground=ground)


class UnreportedRecipe(WeightRecipe):
    """One method that needs no reports: it consumes records, and says in :meth:`attempts_in` which of them are an attempt."""

    idle_s: float
    """How long after its last request a session is over."""

    def __init__(self, *, batch_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(batch_size=batch_size, options=options)
        self._from: dict[str, int] = {}

    @abstractmethod
    def attempts_in(self, bench: Workbench, *, now: float, after: int) -> unreported.Unreported:
        """The attempts that wait, oldest first, among the records after a position in the log."""

    def read(self, bench: Workbench, *, terms: batches.Terms) -> batches.Batch:
        end = bench.store.newest_position()
        waiting = self.attempts_in(bench, now=time.time(), after=self._from.get(bench.scenario, 0))
        # What is before has been consumed. Behind by some: on PostgreSQL a gateway may be late with a record that has its position already.
        self._from[bench.scenario] = max(0, (waiting.oldest or end) - LATE_RECORDS)
        batch = batches.assemble(waiting.rollouts, terms=terms, size=self.batch_size)
        return replace(batch, passed_over=(*waiting.passed_over, *batch.passed_over))

    def sign(self, bench: Workbench) -> Hashable:
        """With each record and each release, and as time goes by: sessions become idle."""
        every_s = max(1.0, self.idle_s / 10)
        return bench.head and bench.head.step, bench.store.newest_position(), int(time.time() / every_s)


def told(batch: batches.Batch) -> str:
    """A batch in a line for people."""
    left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(batch.skipped.items()) if reason != "not_needed")
    known = [lag for lag in batch.lags.elements() if lag >= 0]
    age = f", up to {max(known)} releases old" if any(known) else ""
    return f"{batch.rollouts} attempts, {len(batch.records)} records{age}" + (f"; left out: {left_out}" if left_out else "")


def _ground(bench: Workbench) -> TrainingGround:
    if bench.ground is None:
        raise ConfigError("the learner was given no ground to train on", hint="It comes from the configuration: reef.learner.ground.")
    return bench.ground
