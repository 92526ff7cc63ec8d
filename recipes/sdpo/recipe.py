"""The recipe of SDPO; the loss is in :mod:`reef.training.losses.distill`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog
from pydantic import Field

from reef.evaluation.agreement import said
from reef.experience import telling
from reef.learner.groups import GroupOptions, GroupRecipe
from reef.learner.recipe import Workbench
from reef.learner.teaching import Teaching
from reef.learner.weights import Scored
from reef.training import batches
from reef.training.sample import Sample
from reef.types import JSON

log = structlog.get_logger()

SOLVED = "Correct solution:\n\n{solution}"
FEEDBACK = "The following is feedback from your unsuccessful earlier attempt:\n\n{feedback}"
ASKED = "Correctly solve the original question."
MOST_CHARS = 20_000
"""Of a solution or of feedback."""


class SDPOOptions(GroupOptions):
    """``reef.options`` of this recipe."""

    success: float = Field(1.0, description="An attempt with at least this score can be learned from.")


class SDPORecipe(GroupRecipe):
    """See :class:`reef.learner.weights.WeightRecipe`; the options are :class:`SDPOOptions`."""

    name = "sdpo"
    loss = "sdpo"
    Options = SDPOOptions
    report_schema = Scored
    settings: SDPOOptions

    def useful(self, rewards: Sequence[float]) -> bool:
        return any(reward >= self.settings.success for reward in rewards)

    def samples(self, batch: batches.Batch, *, bench: Workbench) -> Sequence[Sample]:
        solutions = self._solutions(batch.samples, bench=bench)
        teaching = Teaching(bench)
        found = []
        for sample in batch.samples:
            sibling = next((text for attempt, text in solutions.get(sample.group, {}).items() if attempt != sample.rollout), None)
            if sibling is None:
                teaching.left_out["no_successful_sibling"] += 1
            elif (taught := teaching.with_note(sample, self._note(sibling, sample=sample, bench=bench))) is not None:
                found.append(taught)
        log.info("teachers", scenario=bench.scenario, samples=len(found), left_out=dict(teaching.left_out))
        return found

    def _solutions(self, samples: Sequence[Sample], *, bench: Workbench) -> Mapping[str, Mapping[str, str]]:
        """What attempts answered that succeeded: by group, and by attempt."""
        found: dict[str, dict[str, str]] = {}
        for sample in samples:
            if sample.reward is not None and sample.reward >= self.settings.success:
                text = str(said(telling.answer(bench.store.record(sample.records[-1]))))
                if text:
                    found.setdefault(sample.group, {})[sample.rollout] = telling.cut(text, MOST_CHARS)
        return found

    def _note(self, solution: str, *, sample: Sample, bench: Workbench) -> str:
        parts = [SOLVED.format(solution=solution)]
        feedback: JSON = bench.store.report(sample.rollout).feedback
        if feedback and (sample.reward or 0.0) < self.settings.success:
            parts.append(FEEDBACK.format(feedback=telling.cut(telling.readable(feedback), MOST_CHARS)))
        return "\n\n".join([*parts, ASKED])
