"""The recipe of SDFT; the loss is in :mod:`reef.training.losses.distill`."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from reef.errors import NotFound
from reef.evaluation.agreement import said
from reef.experience import telling
from reef.learner.recipe import Workbench
from reef.learner.teaching import Teaching
from reef.learner.weights import WeightRecipe
from reef.training import batches, batches_reader
from reef.training.sample import Sample
from reef.types import JSON, Record, Report

log = structlog.get_logger()

DEMONSTRATED = "This is an example for a response to the question:\n\n{demonstration}\n\nNow answer with a response of your own."
MOST_CHARS = 20_000
"""Of a demonstration."""


class SDFTRecipe(WeightRecipe):
    """See :class:`reef.learner.weights.WeightRecipe`. Options: ``loss``, ``max_tokens``."""

    name = "sdft"
    loss = "sdft"

    def read(self, bench: Workbench, *, terms: batches.Terms) -> batches.Batch:
        return batches_reader.read(bench.store, bench.scenario, recipe=self.name, terms=terms, size=self.batch_size, wanted=brings_one)

    def samples(self, batch: batches.Batch, *, bench: Workbench) -> Sequence[Sample]:
        teaching = Teaching(bench)
        found = []
        for sample in batch.samples:
            shown = demonstration(bench.store.report(sample.rollout), bench=bench)
            if not shown:
                teaching.left_out["no_demonstration"] += 1
                continue
            taught = teaching.with_note(sample, DEMONSTRATED.format(demonstration=telling.cut(shown, MOST_CHARS)))
            if taught is not None:
                found.append(taught)
        log.info("teachers", scenario=bench.scenario, samples=len(found), left_out=dict(teaching.left_out))
        return found


def demonstration(report: Report, *, bench: Workbench) -> str:
    """What a report says should have been answered; empty where it says nothing, or the record that it names is gone."""
    if text := _named(report, "demonstration"):
        return text
    record = demonstrated_by(report, bench=bench)
    return "" if record is None else str(said(telling.answer(record)))


def demonstrated_by(report: Report, *, bench: Workbench) -> Record | None:
    """The record that a report names as a demonstration; None where it names none, it is gone, or it must not be learned from."""
    receipt = "" if _named(report, "demonstration") else _named(report, "demonstrated_by")
    if not receipt:
        return None
    try:
        record = bench.store.record(receipt)
    except NotFound:  # Gone is one too
        return None
    return record if record.scenario == bench.scenario and record.session not in bench.withheld else None


def brings_one(report: Report) -> bool:
    """Whether a report says what should have been answered."""
    return bool(_named(report, "demonstration") or _named(report, "demonstrated_by"))


def _named(report: Report, name: str) -> str:
    places: tuple[JSON, ...] = (report.feedback, report.metadata)
    return next((str(place[name]) for place in places if isinstance(place, dict) and place.get(name)), "")
