"""The recipe of OpenClaw-RL; the loss is in :mod:`reef.training.losses.openclaw_rl`, the judge in :mod:`recipes.openclaw_rl.judge`."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from pydantic import Field

from recipes.openclaw_rl.judge import Judge, Judgement
from reef.errors import ProposalError
from reef.evaluation.agreement import said
from reef.experience import telling
from reef.learner import unreported
from reef.learner.recipe import Workbench
from reef.learner.teaching import Teaching
from reef.learner.weights import UnreportedRecipe, WeightOptions
from reef.training import batches
from reef.training.sample import Sample
from reef.types import JSON, Record

log = structlog.get_logger()

HINT = "[hint from someone who saw how it went: {hint}]"


class OpenClawRLOptions(WeightOptions):
    """``reef.options`` of this recipe."""

    idle_s: float = Field(900.0, ge=0, description="How long after its last request a session is over: then its last turn never trains.")
    judge_model: str = Field("", description="The model that judges, by a name the gateway knows. Empty: the default one.")
    votes: int = Field(1, ge=1, le=15, description="How often the judge is asked about a turn; the majority counts.")
    hints: bool = Field(True, description="Whether hints train too.")


class OpenClawRLRecipe(UnreportedRecipe):
    """See :class:`reef.learner.weights.UnreportedRecipe`; the options are :class:`OpenClawRLOptions`."""

    name = "openclaw_rl"
    loss = "openclaw_rl"
    Options = OpenClawRLOptions
    together = False  # each turn has a vote and a hint of its own
    settings: OpenClawRLOptions

    @property
    def idle_s(self) -> float:  # type: ignore[override]
        return self.settings.idle_s

    def attempts_in(self, bench: Workbench, *, now: float, after: int) -> unreported.Unreported:
        return unreported.turns(bench, recipe=self.name, idle_s=self.idle_s, now=now, after=after)

    def samples(self, batch: batches.Batch, *, bench: Workbench) -> Sequence[Sample]:
        judge = Judge(bench.model, model=self.settings.judge_model, votes=self.settings.votes)
        teaching = Teaching(bench) if self.settings.hints else None
        next_states: dict[str, dict[str, tuple[JSON, ...]]] = {}
        found = []
        for sample in batch.samples:
            record = bench.store.record(sample.records[0])
            session = record.session or ""
            if session not in next_states:
                next_states[session] = unreported.next_states(bench.store.session_records(bench.scenario, session))
            judgement = self._judged(judge, record, next_states[session].get(record.id, ()))
            taught = teaching.with_note(sample, HINT.format(hint=judgement.hint)) if teaching and judgement.hint else None
            if judgement.vote or taught is not None:
                found.append((taught or sample).replace(reward=float(judgement.vote)))
        left_out = dict(teaching.left_out) if teaching else {}
        log.info(
            "judged", scenario=bench.scenario, turns=len(batch.samples), kept=len(found), unreadable=judge.unreadable, no_hint=left_out
        )
        if not found:
            raise ProposalError(
                f"the judge says nothing of {len(batch.samples)} turns", hint="Name another one with reef.options.judge_model."
            )
        return found

    def _judged(self, judge: Judge, record: Record, followed: Sequence[JSON]) -> Judgement:
        if not followed:  # retention was there since
            return Judgement(0, "")
        parts = [part for turn in followed for part in telling.parts(turn) if part.kind is not telling.Kind.SYSTEM]
        prompt = [part for turn in telling.prompt(record)[-1:] for part in telling.parts(turn)]
        return judge.judge(
            asked="\n".join(part.text for part in prompt),
            answered=str(said(telling.answer(record))),
            followed=[("the user" if part.kind is telling.Kind.USER else "a tool", part.text) for part in parts],
            purpose=f"openclaw_rl-{record.id}",
        )
