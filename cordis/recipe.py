"""``cordis``: failing reports become harness candidates. A recipe to copy: it selects, proposes, and keeps no state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cordis import edits, trajectory, workshop
from cordis.proposer import Assignment, Earlier, Proposer
from reef import plugins
from reef.artifacts.tree import content_id
from reef.errors import ConfigError, InvalidTree, PluginError, ProposalError
from reef.harness.tree import validate
from reef.learner.recipe import Attempt, Batch, Model, Proposal, Recipe, Selection, Workbench
from reef.types import Component, Release, Report, Tree

KEPT_PASSING = 100
"""Passing reports that stay unconsumed while a batch fills up: a raised ``score_below`` can still make failures of them."""


class Options(BaseModel):
    """``reef.options`` of this recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempts: int = Field(3, ge=1, le=20, description="Candidates proposed for one batch until one is released.")
    score_below: float = Field(0.5, description="A report below this is a failure. So is one with feedback and no score.")
    proposer: str = Field("llm", min_length=1, description="Name in `reef.proposers`, or a dotted name.")
    model: str = Field("", description="The model that the proposer asks, by a name the gateway knows. Empty: the default one.")
    max_sessions: int = Field(8, ge=1, le=100, description="Sessions shown to the proposer at once.")


class CordisRecipe(Recipe):
    """See :class:`reef.learner.recipe.Recipe`; the options are :class:`Options`.

    Raises:
        ConfigError: an option is unknown or out of bounds, or there is no such proposer.
    """

    name = "cordis"
    component = Component.HARNESS

    def __init__(self, *, batch_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(batch_size=batch_size, options=options)
        try:
            self._options = Options.model_validate(dict(options))
        except ValidationError as error:
            problem = error.errors()[0]
            known = ", ".join(Options.model_fields)
            raise ConfigError(f"reef.options.{'.'.join(map(str, problem['loc']))}: {problem['msg']}", hint=f"Known: {known}.") from None
        self.attempts = self._options.attempts
        self._proposer = _proposer(self._options.proposer)

    def select(self, bench: Workbench) -> Selection:
        """The oldest failures, once there are enough of them.

        Passing reports older than the batch are passed over with it. Without a batch only those beyond :data:`KEPT_PASSING` are, so
        that they cannot fill the window and hide failures behind them.
        """
        window = bench.store.unconsumed_reports(bench.scenario, self.name, limit=self.batch_size + 2 * KEPT_PASSING)
        failing = [report for report in window if self._failed(report)]
        if len(failing) < self.batch_size:
            passing = [report.id for report in window if not self._failed(report)]
            return Selection(passed_over=tuple(passing[: max(0, len(passing) - KEPT_PASSING)]))
        batch = failing[: self.batch_size]
        older = window[: window.index(batch[-1])]
        return Selection(Batch(tuple(batch)), passed_over=tuple(report.id for report in older if not self._failed(report)))

    def propose(self, batch: Batch, *, parent: Release, earlier: Sequence[Attempt], bench: Workbench) -> Proposal:
        tree = bench.artifacts.read(parent.commit)
        sessions, left_out = trajectory.analyse(
            batch.reports, store=bench.store, max_sessions=self._options.max_sessions, withheld=bench.withheld
        )
        if not sessions:
            raise ProposalError("all reports are on sessions that held-out tasks were captured from", hint="Report on other sessions.")
        assignment = Assignment(
            purpose=_purpose(batch, earlier),
            adapter=bench.adapter,
            tree=tree,
            sessions=sessions,
            sessions_left_out=left_out,
            earlier=tuple(_earlier(attempt, parent=parent, bench=bench) for attempt in earlier),
        )
        model = _Named(bench.model, self._options.model) if self._options.model else bench.model
        plan = self._proposer.propose(assignment, model=model, check=_check(tree, earlier=earlier))
        return workshop.build(plan, artifacts=bench.artifacts, parent=parent, recipe=self.name, reports=batch.reports)

    def _failed(self, report: Report) -> bool:
        if report.score is None:
            return bool(report.feedback)
        return report.score < self._options.score_below


@dataclass(frozen=True, slots=True)
class _Named:
    """Implements :class:`reef.learner.recipe.Model`: what is asked of the default model is asked of another."""

    asks: Model
    name: str

    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str, model: str = "") -> str:
        return self.asks.ask(messages, purpose=purpose, model=model or self.name)


def _check(tree: Tree, *, earlier: Sequence[Attempt]) -> Callable[[edits.EditPlan], None]:
    """What a proposer can be told at once; admission, which knows the evaluation set, comes later and is stricter."""
    tried = {attempt.candidate.content_id for attempt in earlier}
    before = content_id(tree)

    def check(plan: edits.EditPlan) -> None:
        after = edits.apply(plan, tree=tree)
        validate(after)
        if content_id(after) == before:
            raise InvalidTree("no change", hint="The edits leave the harness as it is.")
        if content_id(after) in tried:
            raise InvalidTree("the same change was tried before and not released", hint="Propose another one.")

    return check


def _earlier(attempt: Attempt, *, parent: Release, bench: Workbench) -> Earlier:
    """What the proposer may know of an attempt: the verdict in numbers, never which evaluation task decided it."""
    reason = attempt.candidate.reason
    if attempt.verdict is not None:
        verdict = attempt.verdict
        reason = (
            f"{verdict.decision}: in {verdict.pairs} pairs of trials it did better than the head in {verdict.wins} and worse in"
            f" {verdict.losses}, effect {verdict.effect:+.2f} in [{verdict.low:+.2f}, {verdict.high:+.2f}]"
        )
    return Earlier(attempt.candidate.summary, reason, bench.artifacts.diff(parent.commit, attempt.candidate.commit))


def _purpose(batch: Batch, earlier: Sequence[Attempt]) -> str:
    digest = hashlib.sha256("\n".join(report.id for report in batch.reports).encode()).hexdigest()[:12]
    return f"propose-{digest}-{len(earlier) + 1}"


def _proposer(name: str) -> Proposer:
    try:
        kind = plugins.load("reef.proposers", name)
    except PluginError as error:
        raise ConfigError(f"reef.options.proposer: {error.message}", hint=error.hint) from error
    if not (isinstance(kind, type) and issubclass(kind, Proposer)):
        raise ConfigError(f"reef.options.proposer: {name} is not a cordis.proposer:Proposer", hint="Derive its class from Proposer.")
    return kind()
