"""Judging a harness candidate: admission, then paired trials of the real coding agent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from reef import process
from reef.config import Config
from reef.evaluation.evaluator import Evaluator
from reef.evaluation.tasks import load_tasks
from reef.harness.adapter import load_adapter
from reef.harness.admission import admit
from reef.harness.episode import EpisodeRunner
from reef.harness.install import install
from reef.harness.sandbox import Sandbox
from reef.releases.controller import Controller
from reef.types import Candidate, Decision, Release, Task, Tree, Verdict


class HarnessJudge:
    """Implements :class:`reef.learner.loop.Judge` for harness trees."""

    def __init__(self, *, config: Config, controller: Controller) -> None:
        self._config = config
        self._controller = controller
        self._adapter = load_adapter(config.evaluation.adapter)
        self._tasks = load_tasks(config.path(config.evaluation.tasks)) if config.evaluation.tasks else ()
        self._runner: EpisodeRunner | None = None

    def admit(self, tree: Tree, *, base: Tree) -> None:
        admit(tree, adapter=self._adapter, base=base, forbidden=[text for task in self._tasks for text in _never_told(task)])

    def judge(self, candidate: Candidate, *, tree: Tree, head: Release, head_tree: Tree, progress: Callable[[str], None]) -> Verdict:
        if not self._tasks:
            return _undecided("there are no evaluation tasks: set evaluation.tasks in serve.yaml")
        if candidate.content_id == head.content_id:
            return _undecided("no change: the candidate's bytes are the head's")
        spent = self._controller.spent(candidate.scenario, excluding=candidate.id)
        evaluator = Evaluator(runner=self._episodes(progress), tasks=self._tasks, config=self._config.evaluation, spent=spent)
        return evaluator.judge(
            scenario=candidate.scenario,
            candidate_id=candidate.id,
            candidate_tree=tree,
            candidate_content_id=candidate.content_id,
            head_tree=head_tree,
            head_content_id=head.content_id,
            head_step=head.step,
            seed=candidate.id,
            progress=progress,
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
                model=self._config.upstream.model,
                timeout_s=self._config.evaluation.trial_timeout_s,
                sandbox=Sandbox(self._config.evaluation.sandbox),
            )
        return self._runner


def _never_told(task: Task) -> Iterator[str]:
    """What a candidate may not contain, or the trials would grade what it was told."""
    yield from (task.id, task.prompt)
    for option in ("expected", "pattern"):
        if text := str(task.grader_options.get(option, "")):
            yield text
    yield from (str(content) for content in dict(task.grader_options.get("files", {})).values())


def _undecided(reason: str) -> Verdict:
    return Verdict(
        Decision.INCONCLUSIVE, reason, effect=0.0, low=-1.0, high=1.0, pairs=0, wins=0, losses=0, evidence=1.0, alpha=0.0, seconds=0.0
    )
