"""Judging a harness candidate: admission, then paired trials of the real coding agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reef.artifacts.tree import changed_paths
from reef.config import Config
from reef.errors import InvalidTree, NotFound
from reef.evaluation import splits
from reef.evaluation.evaluator import Evaluator
from reef.evaluation.execution import Execution, LocalExecution
from reef.evaluation.ray_execution import RayExecution, Tools
from reef.evaluation.tasks import grader_for, load_tasks
from reef.evaluation.trials import Tokens
from reef.evaluation.verdicts import undecided
from reef.experience.store import ExperienceStore
from reef.harness.adapter import load_adapter
from reef.harness.admission import admit
from reef.learner.chat_runner import RULES, RULES_FILE, WITHOUT_AGENT, ChatRunner
from reef.learner.workplace import HarnessWorkplace
from reef.releases import sealed
from reef.releases.controller import Controller
from reef.types import Candidate, Component, Release, Task, Tree, Verdict


class HarnessJudge:
    """Implements :class:`reef.learner.loop.Judge` for harness trees."""

    def __init__(self, *, config: Config, controller: Controller, store: ExperienceStore) -> None:
        self._config = config
        self._store = store
        self._controller = controller
        self._adapter = None if config.evaluation.adapter in WITHOUT_AGENT else load_adapter(config.evaluation.adapter)
        told = config.evaluation
        self._tasks: tuple[Task, ...] = load_tasks(config.path(told.tasks), shares=told.splits) if told.tasks else ()
        self._tools: Tools | None = None
        self._ray: RayExecution | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Those of `evaluation.tasks`."""
        return self._tasks

    def admit(self, tree: Tree, *, base: Tree) -> None:
        if self._adapter is None:
            _only_rules(tree, base=base, adapter=self._config.evaluation.adapter)
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
            execution=self._execution(candidate.scenario, progress),
            tasks=self._tasks,
            config=self._config.evaluation,
            spent=spent,
            agent=self._agent(head),
            meter=lambda session: self._used(candidate.scenario, session),
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

    def measure(self, look: sealed.Look, *, release: Release, against: Release, progress: Callable[[str], None]) -> Verdict:
        """Compare two releases on the sealed tasks, and decide nothing.

        Raises:
            ConfigError: no task is sealed.
        """
        config = self._config.evaluation
        evaluator = Evaluator(
            execution=self._execution(look.scenario, progress),
            tasks=self._tasks,
            config=config.model_copy(update={"max_pairs": look.pairs or config.max_pairs}),
            spent=0,
            agent=self._agent(),
            meter=lambda session: self._used(look.scenario, session),
            sealed=True,
        )
        return evaluator.judge(
            scenario=look.scenario,
            candidate_id=look.id,
            candidate_tree=self._controller.tree(look.scenario, release.step),
            candidate_content_id=release.content_id,
            candidate_step=release.step,
            head_tree=self._controller.tree(look.scenario, against.step),
            head_content_id=against.content_id,
            head_step=against.step,
            seed=look.id,
            progress=progress,
        )

    def _agent(self, head: Release | None = None) -> str:
        """What runs have to have in common to be comparable, beside the task.

        Args:
            head: whose weights both sides ask, where it has some of its own: runs with the weights before them are of another agent.
        """
        models = (self._config.default_model, self._config.evaluation.judge_model)
        agent = (self._config.evaluation.adapter,) if self._adapter is None else (self._adapter.name, self._adapter.install.version)
        weights = head.components.get(Component.MODEL.value) if head is not None else None
        return " ".join((*agent, *models, *([weights.content_id] if weights else []))).strip()

    def _used(self, scenario: str, session: str) -> Tokens:
        """What a trial used, by its records: they are written before the agent has its answers."""
        try:
            found = self._store.session(scenario, session)
        except NotFound:  # it never got as far as to ask the model
            return Tokens(0, 0)
        return Tokens(found.prompt_tokens, found.completion_tokens)

    def _execution(self, scenario: str, progress: Callable[[str], None]) -> Execution:
        """Where its trials run. The first time, the coding agent is installed, or the cluster is told how to."""
        if self._adapter is None:
            ask = HarnessWorkplace.of(self._config)
            runner = ChatRunner(lambda name: ask.model_for(name, url=ask.gateway_url, model=self._config.default_model), rules=True)
            asked = ask.model_for(scenario, url=ask.gateway_url)
            return LocalExecution(runner=runner, model=asked, workers=self._config.evaluation.parallel)
        told = self._config.execution
        workers = told.workers or self._config.evaluation.parallel
        if told.backend == "ray":
            if self._ray is None:
                workplace = HarnessWorkplace.of(self._config)
                self._ray = RayExecution(workplace=workplace, address=told.address, workers=workers, timeout_s=told.timeout_s)
            return self._ray
        tools = self._own_tools(progress)
        return LocalExecution(runner=tools.runner, model=tools.model_for(scenario), workers=workers)

    def _own_tools(self, progress: Callable[[str], None]) -> Tools:
        """What runs the coding agent in this process. The first time, the agent is installed."""
        if self._tools is None:
            progress(f"installing {self._config.evaluation.adapter}")
            self._tools = HarnessWorkplace.of(self._config).open_here()
        return self._tools


def _only_rules(tree: Tree, *, base: Tree, adapter: str) -> None:
    """Raise InvalidTree where trials could not tell whether what a candidate changes is any good."""
    hint = f"evaluation.adapter: {RULES} tries {RULES_FILE} as the system message; a coding agent's adapter tries the whole harness."
    if adapter != RULES:
        raise InvalidTree(f"a harness cannot be judged where evaluation.adapter is {adapter}", hint=hint)
    if unread := [path for path in changed_paths(base, tree) if path != RULES_FILE]:
        raise InvalidTree(f"{unread[0]} is read by nobody here: {RULES_FILE} alone is", hint=hint)


def _never_told(task: Task) -> Iterator[str]:
    """What a candidate may not contain, or the trials would grade what it was told."""
    yield from (task.id, task.prompt)
    yield from grader_for(task).never_told()
