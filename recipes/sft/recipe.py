"""The recipe of supervised fine-tuning; the loss is in :mod:`reef.training.losses.sft`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import structlog

from recipes.sdft.recipe import brings_one, demonstration
from reef.errors import Unprocessable
from reef.learner.recipe import Workbench
from reef.learner.weights import WeightRecipe
from reef.training import batches, batches_reader
from reef.training.prompts import ChatPrompts
from reef.training.sample import Sample
from reef.types import Record

log = structlog.get_logger()


class SFTRecipe(WeightRecipe):
    """See :class:`reef.learner.weights.WeightRecipe`. Options: ``max_tokens``."""

    name = "sft"
    loss = "sft"

    def read(self, bench: Workbench, *, terms: batches.Terms) -> batches.Batch:
        return batches_reader.read(bench.store, bench.scenario, recipe=self.name, terms=terms, size=self.batch_size, wanted=brings_one)

    def samples(self, batch: batches.Batch, *, bench: Workbench) -> Sequence[Sample]:
        assert bench.ground is not None
        prompts = ChatPrompts(bench.ground.base())
        left_out: Counter[str] = Counter()
        found = []
        for sample in {sample.rollout: sample for sample in batch.samples}.values():  # of an attempt the last: it is what was answered
            shown = demonstration(bench.store.report(sample.rollout), bench=bench)
            if not shown:
                left_out["no_demonstration"] += 1
                continue
            taught = self._shown(sample, shown, record=bench.store.record(sample.records[-1]), prompts=prompts, left_out=left_out)
            if taught is not None:
                found.append(taught)
        log.info("demonstrations", scenario=bench.scenario, samples=len(found), left_out=dict(left_out))
        return found

    def _shown(self, sample: Sample, shown: str, *, record: Record, prompts: ChatPrompts, left_out: Counter[str]) -> Sample | None:
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
