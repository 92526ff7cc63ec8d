"""The recipe of supervised fine-tuning; the loss is in :mod:`reef.training.losses.sft`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import structlog

from recipes.sdft.recipe import brings_one, demonstrated_by, demonstration
from recipes.sft.recorded import Recorded, demonstrates, message
from reef.errors import Unprocessable
from reef.learner.recipe import Workbench
from reef.learner.weights import WeightRecipe
from reef.training import batches, batches_reader
from reef.training.prompts import ChatPrompts
from reef.training.sample import Sample
from reef.types import JSON, Record, Report

log = structlog.get_logger()


class SFTRecipe(WeightRecipe):
    """See :class:`reef.learner.weights.WeightRecipe`. Options: ``max_tokens``."""

    name = "sft"
    loss = "sft"

    def read(self, bench: Workbench, *, terms: batches.Terms) -> batches.Batch:
        found = batches_reader.judged(bench.store, bench.scenario, recipe=self.name, wanted=teaches)
        found.consumed.update(terms.consumed)
        attempts = map(Recorded(bench, parent=terms.parent), found.rollouts)
        batch = batches.assemble(attempts, terms=replace(terms, consumed=found.consumed), size=self.batch_size)
        return replace(batch, passed_over=(*found.useless, *batch.passed_over))

    def samples(self, batch: batches.Batch, *, bench: Workbench) -> Sequence[Sample]:
        assert bench.ground is not None
        prompts = bench.ground.prompts()
        left_out: Counter[str] = Counter()
        last = {sample.rollout: sample for sample in batch.samples}  # of an attempt the last: it is what was answered
        reports = {rollout: bench.store.report(rollout) for rollout in last}
        found = [sample for sample in batch.samples if demonstrates(reports[sample.rollout])]
        for rollout, sample in last.items():
            if demonstrates(reports[rollout]):
                continue
            shown = told(reports[rollout], bench=bench)
            if not shown:
                left_out["no_demonstration"] += 1
                continue
            taught = self._shown(sample, shown, record=bench.store.record(sample.records[-1]), prompts=prompts, left_out=left_out)
            if taught is not None:
                found.append(taught)
        log.info("demonstrations", scenario=bench.scenario, samples=len(found), left_out=dict(left_out))
        return found

    def _shown(
        self, sample: Sample, shown: str | dict[str, JSON], *, record: Record, prompts: ChatPrompts, left_out: Counter[str]
    ) -> Sample | None:
        """The last turn of a sample with what should have been answered in the place of what was."""
        if record.tokens is None or record.dialect != "chat":
            left_out["no_tokens"] += 1
            return None
        prompt = record.tokens.prompt_ids
        try:
            if prompts.tokens(record.request) != prompt:
                left_out["other_template"] += 1
                return None
            answer = prompts.answer(record.request, shown)
        except Unprocessable:
            left_out["refused_by_template"] += 1
            return None
        length = len(prompt) + len(answer)
        if self.settings.max_tokens is not None and length > self.settings.max_tokens:
            left_out["too_long"] += 1
            return None
        return Sample(
            tokens=(*prompt, *answer),
            mask=(*[False] * len(prompt), *[True] * len(answer)),
            old_logprobs=(0.0,) * length,  # no policy generated it, and the loss looks at none
            releases=(None,) * length,
            rollout=sample.rollout,
            records=sample.records,
            session=sample.session,
        )


def teaches(report: Report) -> bool:
    """Whether a report says what should have been answered."""
    return demonstrates(report) or brings_one(report)


def told(report: Report, *, bench: Workbench) -> str | dict[str, JSON]:
    """What a report says should have been answered: a text, or a message with calls of tools; empty where it says nothing."""
    record = demonstrated_by(report, bench=bench)
    return (message(record) if record is not None else None) or demonstration(report, bench=bench)
