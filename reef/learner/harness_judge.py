"""Judging a harness candidate: admission, then paired trials of the real coding agent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from reef import process
from reef.config import Config
from reef.errors import NotFound
from reef.evaluation import splits
from reef.evaluation.evaluator import Evaluator
from reef.evaluation.tasks import grader_for, load_tasks
from reef.evaluation.trials import Tokens
from reef.evaluation.verdicts import undecided
from reef.experience.store import ExperienceStore
from reef.harness.adapter import load_adapter
from reef.harness.admission import admit
from reef.harness.episode import EpisodeRunner
from reef.harness.install import install
from reef.harness.sandbox import Sandbox
from reef.learner.model import GatewayModel
from reef.releases.controller import Controller
from reef.types import Candidate, Release, Task, Tree, Verdict


class HarnessJudge:
    """Implements :class:`reef.learner.loop.Judge` for harness trees."""

    def __init__(self, *, config: Config, controller: Controller, store: ExperienceStore) -> None:
        self._config = config
        self._store = store
        self._controller = controller
        self._adapter = load_adapter(config.evaluation.adapter)
        told = config.evaluation
        self._tasks = load_tasks(config.path(told.tasks), shares=told.splits) if told.tasks else ()
        self._runner: EpisodeRunner | None = None

    def admit(self, tree: Tree, *, base: Tree) -> None:
        admit(tree, adapter=self._adapter, base=base, forbidden=[text for task in self._tasks for text in _never_told(task)])

    def withheld(self, scenario: str) -> frozenset[str]:
        """Sessions that held-out and sealed tasks were captured from."""
        kept = (task.outcome for task in self._tasks if task.split != splits.SEARCH)
        return frozenset(str(outcome["session"]) for outcome in kept if outcome.get("scenario") == scenario and outcome.get("session"))

    def judge(self, candidate: Candidate, *, tree: Tree, head: Release, head_tree: Tree, progress: Callable[[str], None]) -> Verdict:
        if not self._tasks:
            return undecided("there are no evaluation tasks: set evaluation.tasks in serve.yaml")
        spent = self._controller.spent(candidate.scenario, excluding=candidate.id)
        evaluator = Evaluator(
            runner=self._episodes(progress),
            tasks=self._tasks,
            config=self._config.evaluation,
            spent=spent,
            agent=self._agent(),
            meter=lambda session: self._used(candidate.scenario, session),
            model=self._asked_by_graders(candidate.scenario),
        )
        return evaluator.judge(
            scenario=candidate.scenario,
            candidate_id=candidate.id,
            candidate_tree=tree,
            candidate_content_id=candidate.content_id,
            head_tree=head_tree,
            head_content_id=head.content_id,
            head_step=head.step,
            seed=candidate.id,
            remembered=self._controller.trials_of(candidate.scenario, head.content_id),
            progress=progress,
        )

    def _agent(self) -> str:
        """What runs have to have in common to be comparable, beside the task."""
        models = (self._config.default_model, self._config.evaluation.judge_model)
        return " ".join((self._adapter.name, self._adapter.install.version, *models)).strip()

    def _used(self, scenario: str, session: str) -> Tokens:
        """What a trial used, by its records: they are written before the agent has its answers."""
        try:
            found = self._store.session(scenario, session)
        except NotFound:  # it never got as far as to ask the model
            return Tokens(0, 0)
        return Tokens(found.prompt_tokens, found.completion_tokens)

    def _asked_by_graders(self, scenario: str) -> GatewayModel:
        """The model of graders that ask one. Its exchanges are trials': no proposer is shown them."""
        return GatewayModel(
            url=os.environ[process.GATEWAY_URL],
            token=os.environ[process.TRIAL_TOKEN],
            model=self._config.evaluation.judge_model or self._config.default_model,
            scenario=scenario,
            temperature=0.0,
        )

    def _episodes(self, progress: Callable[[str], None]) -> EpisodeRunner:
        """The runner; installs the coding agent the first time."""
        if self._runner is None:
            progress(f"installing {self._adapter.name}")
            self._runner = EpisodeRunner(
                adapter=self._adapter,
                installed=install(self._adapter),
                gateway_socket=Path(self._config.state_dir, "run", "gateway.sock"),
                gateway_url=os.environ[process.GATEWAY_URL],
                token=os.environ[process.TRIAL_TOKEN],
                model=self._config.default_model,
                timeout_s=self._config.evaluation.trial_timeout_s,
                sandbox=Sandbox(self._config.evaluation.sandbox),
            )
        return self._runner


def _never_told(task: Task) -> Iterator[str]:
    """What a candidate may not contain, or the trials would grade what it was told."""
    yield from (task.id, task.prompt)
    yield from grader_for(task).never_told()
