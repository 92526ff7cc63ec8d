"""Where trials run. The pairs and their order stay with the evaluator; an execution is given one trial after the other.

:class:`LocalExecution` runs them in the thread that asks; :mod:`reef.evaluation.ray_execution` has a cluster do it. What a trial comes to
is the same either way, :func:`attempt`: the agent and the grader run in one place, because the grader looks at the workspace.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from reef.errors import GraderFault, InvalidTree
from reef.evaluation.graders import Grader, Model, RunCommand
from reef.evaluation.tasks import grader_for
from reef.types import File, Setup, Task, Tree, TrialEnd

NO_SETUP = Setup()
GRADING = ":grading"
"""What a trial's session ends with where its grader asks a model: those exchanges are not the agent's, and are counted apart."""


class Episode(Protocol):
    """A finished run, as `reef.harness.episode.EpisodeResult` is."""

    @property
    def workspace(self) -> Path: ...
    @property
    def answer(self) -> str: ...
    @property
    def fault(self) -> Literal["harness", "infrastructure"] | None: ...
    @property
    def detail(self) -> str: ...
    @property
    def duration_s(self) -> float: ...
    @property
    def run_command(self) -> RunCommand: ...


class Runner(Protocol):
    """Runs episodes, as `reef.harness.episode.EpisodeRunner` does; called from several threads."""

    def run(
        self,
        tree: Tree,
        *,
        prompt: str,
        files: Mapping[str, str | File],
        scenario: str,
        session: str,
        release: int | None,
        setup: Setup = NO_SETUP,
    ) -> AbstractContextManager[Episode]:
        """Run the agent; the workspace lasts as long as the context."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One trial to run."""

    task: Task
    tree: Tree
    scenario: str
    session: str
    release: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial came to."""

    end: TrialEnd
    score: float
    detail: str
    seconds: float = 0.0
    """How long it took where it ran; 0 where that is not known."""
    where: str = ""
    """The machine and process that ran it; empty: this one."""


class Execution(ABC):
    """Runs trials; called from several threads."""

    workers: int
    """How many run at the same time."""

    @abstractmethod
    def run(self, job: Job, *, stop: threading.Event) -> Outcome:
        """Run one trial to its end, within a bound of time. A worker that is lost, or not there, is a fault of the infrastructure.

        Args:
            stop: set when the outcome is wanted no more: a trial that can be ended early is.

        Raises:
            ConfigError: its grader is wrong.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what it holds. No trial is under way."""


class LocalExecution(Execution):
    """Runs trials in the threads that ask for them. One that has begun runs to its end: the runner's bounds end it.

    Args:
        runner: runs one episode.
        model: for graders that ask one.
        workers: how many threads ask at the same time.
    """

    def __init__(self, *, runner: Runner, model: Model | None = None, workers: int = 1) -> None:
        self._runner = runner
        self._model = model
        self._graders: dict[str, tuple[Task, Grader]] = {}
        self.workers = workers

    def run(self, job: Job, *, stop: threading.Event) -> Outcome:
        return attempt(job, runner=self._runner, grader=self._grader(job.task))

    def _grader(self, task: Task) -> Grader:
        known = self._graders.get(task.id)
        if known is None or known[0] is not task:  # two threads may make the same one; either will do
            known = self._graders[task.id] = (task, grader_for(task, model=self._model))
        return known[1]


def attempt(job: Job, *, runner: Runner, grader: Grader) -> Outcome:
    """Run the agent, then the grader.

    Raises:
        ConfigError: the grader is wrong.
    """
    started = time.monotonic()
    return replace(_outcome(job, runner=runner, grader=grader), seconds=time.monotonic() - started)


def _outcome(job: Job, *, runner: Runner, grader: Grader) -> Outcome:
    try:
        with runner.run(
            job.tree,
            prompt=job.task.prompt,
            files=job.task.files,
            scenario=job.scenario,
            session=job.session,
            release=job.release,
            setup=job.task.setup,
        ) as episode:
            if episode.fault == "infrastructure":
                return Outcome(TrialEnd.INFRASTRUCTURE_FAULT, 0.0, episode.detail or "the infrastructure failed")
            if episode.fault == "harness":
                return Outcome(TrialEnd.HARNESS_FAULT, 0.0, episode.detail)
            asking = grader.asking_as(job.session + GRADING)
            score = asking.grade(task=job.task, workspace=episode.workspace, answer=episode.answer, run_command=episode.run_command)
            return Outcome(TrialEnd.SCORED, score.value, score.detail)
    except InvalidTree as error:
        return Outcome(TrialEnd.HARNESS_FAULT, 0.0, error.message)
    except GraderFault as error:
        return Outcome(TrialEnd.INFRASTRUCTURE_FAULT, 0.0, error.message)
    except OSError as error:  # SandboxError and UpstreamError among them
        return Outcome(TrialEnd.INFRASTRUCTURE_FAULT, 0.0, str(error))
