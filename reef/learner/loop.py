"""The loop: for each scenario, and each part of the recipe in turn, select → propose → admit → judge → settle, for ever.

Nothing is kept in memory that a crash may not lose: a batch stays unconsumed until the transaction that settles its last candidate, so a
learner that was killed starts the step again from the same reports and sees the attempts already judged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import content_id
from reef.errors import InvalidTree, ProposalError, ReefError, StaleHead
from reef.evaluation.verdicts import no_change
from reef.experience.store import ExperienceStore
from reef.learner.ground import TrainingGround
from reef.learner.recipe import Attempt, Batch, Model, Proposal, Recipe, Unreleased, Workbench
from reef.releases import rollout
from reef.releases.controller import Controller
from reef.types import Candidate, CandidateState, Component, Decision, Release, Tree, Verdict

log = structlog.get_logger()

BACKOFF_FIRST_S = 2.0
BACKOFF_MOST_S = 300.0


class Judge(Protocol):
    """Admission and trials, for the kind of artifact the recipe changes."""

    def admit(self, tree: Tree, *, base: Tree) -> None:
        """Raise InvalidTree when the candidate may not even be tried."""
        ...

    def judge(self, candidate: Candidate, *, tree: Tree, head: Release, head_tree: Tree, progress: Callable[[str], None]) -> Verdict:
        """Compare the candidate with the head."""
        ...


@dataclass(frozen=True, slots=True)
class Activity:
    """What the learner is doing, for `reef status`."""

    scenario: str
    phase: str
    detail: str = ""
    error: str = ""


class Learner:
    """Runs one recipe over all scenarios.

    Args:
        recipe: the method.
        judge: admission and trials: one for whatever the recipe changes, or one for each component.
        model_for: gives the model a scenario's recipe may ask.
        max_staleness: how many releases experience may lag behind the head and still be learned from.
        withheld: gives the sessions of a scenario that no proposer may be shown.
        tell: gets every change of activity.
        chore: something else that the learner does between steps; whether it did anything.
        ground: what recipes for weights need.
    """

    def __init__(
        self,
        *,
        recipe: Recipe,
        store: ExperienceStore,
        artifacts: ArtifactRepository,
        controller: Controller,
        judge: Judge | Mapping[Component, Judge],
        model_for: Callable[[str], Model],
        adapter: str,
        max_staleness: int,
        withheld: Callable[[str], frozenset[str]] = lambda _scenario: frozenset(),
        tell: Callable[[Activity], None] = lambda _activity: None,
        chore: Callable[[], bool] = lambda: False,
        ground: TrainingGround | None = None,
    ) -> None:
        self._recipe = recipe
        self._store = store
        self._artifacts = artifacts
        self._controller = controller
        self._judge = judge
        self._model_for = model_for
        self._adapter = adapter
        self._max_staleness = max_staleness
        self._withheld = withheld
        self._tell = tell
        self._chore = chore
        self._ground = ground
        self._retry_at: dict[tuple[str, str], float] = {}
        """By scenario and recipe, so that what one part waits for does not hold up the others."""
        self._backoff: dict[tuple[str, str], float] = {}

    def run(self, stop: threading.Event, *, poll_interval_s: float) -> None:
        """Work until ``stop`` is set."""
        while not stop.is_set():
            if not self.work_once():
                stop.wait(poll_interval_s)

    def work_once(self) -> bool:
        """Give every scenario one step of each part; True if any of them did something.

        A step that fails (its upstream is down, say) is tried again with back-off and does not hold up the others.
        """
        worked = self._chore()
        for scenario in self._controller.scenarios():
            for part in self._recipe.parts:
                worked = self._step_or_wait(scenario, part) or worked
        return worked

    def _step_or_wait(self, scenario: str, recipe: Recipe) -> bool:
        place = scenario, recipe.name
        if time.monotonic() < self._retry_at.get(place, 0.0):
            return False
        try:
            worked = self._step(scenario, recipe)
            self._backoff.pop(place, None)
        except ReefError as error:
            delay = min(self._backoff.get(place, BACKOFF_FIRST_S / 2) * 2, BACKOFF_MOST_S)
            self._backoff[place], self._retry_at[place] = delay, time.monotonic() + delay
            log.warning("step failed", scenario=scenario, recipe=recipe.name, error=error.message, retry_in_s=delay)
            self._tell(Activity(scenario, "waiting", f"trying again in {delay:.0f} s", error.message))
            return False
        return worked

    def step(self, scenario: str) -> bool:
        """One step of each part of the recipe, one after the other: each starts from what the one before it left as the head."""
        return any([self._step(scenario, part) for part in self._recipe.parts])

    def _step(self, scenario: str, recipe: Recipe) -> bool:
        """One step of learning: a batch, and as many candidates for it as the recipe allows until one is released.

        None while a candidate is on canary: whatever came of it would be made for a head that is about to go.
        """
        if rollout.canary(self._controller, scenario) is not None:
            return False
        bench = self._bench(scenario, recipe)
        selection = recipe.select(bench)
        if selection.passed_over:
            self._controller.consume(scenario, recipe.name, selection.passed_over)
        if selection.batch is None:
            return bool(selection.passed_over)
        if stale := self._stale(selection.batch, scenario):
            log.info("experience too old", scenario=scenario, reports=len(stale))
            self._controller.consume(scenario, recipe.name, stale)
            return True
        try:
            self._learn_from(selection.batch, recipe, bench)
        except StaleHead as error:  # the batch is untouched: the next round starts from the new head
            log.info("head moved during the step", scenario=scenario, error=error.message)
        self._tell(Activity(scenario, "idle"))
        return True

    def _bench(self, scenario: str, recipe: Recipe | None = None) -> Workbench:
        return Workbench(
            scenario=scenario,
            store=self._store,
            artifacts=self._artifacts,
            model=self._model_for(scenario),
            adapter=self._adapter,
            withheld=self._withheld(scenario),
            chain=lambda: self._controller.releases(scenario),
            head=self._controller.head(scenario),
            state=self._controller.recipe_state(scenario, (recipe or self._recipe).name),
            ground=self._ground,
        )

    def _stale(self, batch: Batch, scenario: str) -> list[str]:
        """Reports on releases so old that what they say may no longer hold."""
        if batch.fresh:
            return []
        oldest = self._controller.head(scenario).step - self._max_staleness
        newest = {report.id: self._store.newest_release(report.id) for report in batch.reports}
        return [report for report, release in newest.items() if release is not None and release < oldest]

    def _learn_from(self, batch: Batch, recipe: Recipe, bench: Workbench) -> None:
        reports = batch.consumes
        earlier = self._earlier(bench.scenario, recipe, reports)
        while len(earlier) < recipe.attempts:
            parent = self._controller.head(bench.scenario)
            self._tell(Activity(bench.scenario, "proposing", f"attempt {len(earlier) + 1} from {len(reports)} reports"))
            try:
                proposal = recipe.propose(batch, parent=parent, earlier=earlier, bench=bench)
            except ProposalError as error:
                log.warning("no proposal", scenario=bench.scenario, error=error.message)
                self._tell(Activity(bench.scenario, "idle", error=error.message))
                break
            if isinstance(proposal, Unreleased):
                log.info("nothing to release", scenario=bench.scenario, learned=proposal.summary)
                self._controller.consume(bench.scenario, recipe.name, reports, state=proposal.state)
                return
            last = len(earlier) + 1 == recipe.attempts
            attempt = self._try(proposal, recipe=recipe, parent=parent, reports=reports, bench=bench, last=last)
            if attempt.verdict is not None and attempt.verdict.decision is Decision.PROMOTE:
                return
            earlier.append(attempt)
        self._controller.consume(bench.scenario, recipe.name, reports)

    def _earlier(self, scenario: str, recipe: Recipe, reports: Sequence[str]) -> list[Attempt]:
        """Attempts of the recipe for the same reports that a learner before this one has finished."""
        tried = self._controller.candidates(scenario, states=(CandidateState.REJECTED, CandidateState.INCONCLUSIVE))
        mine = (candidate for candidate in tried if candidate.recipe == recipe.name and set(candidate.reports) == set(reports))
        return [Attempt(candidate, self._controller.verdict(candidate.id)) for candidate in mine]

    def _try(
        self, proposal: Proposal, *, recipe: Recipe, parent: Release, reports: tuple[str, ...], bench: Workbench, last: bool
    ) -> Attempt:
        """Admit, judge and settle one candidate."""
        judge = self._judge[recipe.component] if isinstance(self._judge, Mapping) else self._judge
        tree = self._artifacts.read(proposal.commit)
        candidate = self._controller.open_candidate(
            scenario=bench.scenario,
            component=recipe.component,
            recipe=recipe.name,
            base_step=parent.step,
            branch=proposal.branch,
            commit=proposal.commit,
            content_id=content_id(tree),
            summary=proposal.summary,
            reports=reports,
        )
        if _same(candidate, parent):  # not judged, so none of the chain's error is spent
            verdict = no_change()
            self._controller.settle(candidate, verdict, expected_head=parent.step, consumed=reports if last else ())
            return Attempt(self._controller.candidate(candidate.id), verdict)
        head_tree = self._controller.tree(bench.scenario, parent.step)
        try:
            judge.admit(tree, base=head_tree)
        except InvalidTree as error:
            self._controller.mark(candidate.id, CandidateState.REJECTED, error.message)
            return Attempt(self._controller.candidate(candidate.id), None)
        self._controller.mark(candidate.id, CandidateState.JUDGING, "")

        def progress(detail: str) -> None:
            self._tell(Activity(bench.scenario, "judging", f"{candidate.summary}: {detail}"))

        try:
            verdict = judge.judge(candidate, tree=tree, head=parent, head_tree=head_tree, progress=progress)
            consumed: Iterable[str] = reports if last or verdict.decision is Decision.PROMOTE else ()
            self._controller.settle(candidate, verdict, expected_head=parent.step, consumed=tuple(consumed))
        except ReefError as error:
            self._controller.mark(candidate.id, CandidateState.ABANDONED, error.message)
            raise
        log.info("settled", scenario=bench.scenario, candidate=candidate.id, decision=verdict.decision, reason=verdict.reason)
        return Attempt(self._controller.candidate(candidate.id), verdict)


def _same(candidate: Candidate, parent: Release) -> bool:
    """Whether a candidate changes no byte of the release it was made for."""
    served = parent.components
    return all(name in served and served[name].content_id == content.content_id for name, content in candidate.components.items())
