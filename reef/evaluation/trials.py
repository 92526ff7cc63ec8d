"""Runs trials: one task with one artifact, graded; and pairs of them, both sides again where the infrastructure failed.

**Pairing.** Both sides of a pair run one after the other in the same thread, in random order: close in time, so that a slow or degraded
upstream hits both, and neither side is always the second.

**Faults.** A fault of the infrastructure says nothing about either side: the pair is run again, both sides, a bounded number of times. A
fault of the harness (time-out, crash) is a score of 0 for it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from reef.config import EvaluationConfig
from reef.errors import GraderFault, InvalidTree
from reef.evaluation.gate import Stage
from reef.evaluation.graders import Grader, RunCommand
from reef.types import File, Setup, Task, Tree, Trial, TrialEnd

RERUNS = 2
"""How often a pair is run again for faults of the infrastructure before judging is given up."""
_DETAIL_CHARACTERS = 500

Side = Literal["head", "candidate"]


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


NO_SETUP = Setup()


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


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a session used."""

    prompt: int
    completion: int


Meter = Callable[[str], Tokens]
"""Counts the tokens of a session of the scenario that is judged; its records are written by the time its run has ended."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One side."""

    tree: Tree
    content_id: str
    release: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A pair to run."""

    number: int
    stage: Stage
    task: Task
    order: tuple[Side, ...]
    """The sides to run; only the candidate's where ``remembered`` takes the head's place."""
    remembered: Trial | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair that was run, with every attempt at it."""

    plan: Plan
    trials: tuple[Trial, ...]

    @property
    def last(self) -> dict[str, Trial]:
        """The trials of the last attempt, by side."""
        attempt = max(trial.attempt for trial in self.trials)
        return {trial.side: trial for trial in self.trials if trial.attempt == attempt}

    @property
    def fault(self) -> str:
        """What the infrastructure's fault was in the end; empty where both sides count."""
        return next((trial.detail for trial in self.last.values() if trial.end is TrialEnd.INFRASTRUCTURE_FAULT), "")


def setting_of(task: Task, *, agent: str) -> str:
    """Digest of what a run hangs on beside its artifact: the task as it is written down, and ``agent``, the model and adapter version."""
    told = (agent, task.id, task.prompt, task.grader, sorted(task.grader_options.items()), sorted(task.files.items()), task.setup)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRunner:
    """Runs pairs for one candidate; from several threads."""

    runner: Runner
    graders: Mapping[str, Grader]
    """By task."""
    artifacts: Mapping[Side, Artifact]
    config: EvaluationConfig
    scenario: str
    prefix: str
    """Of the trials' sessions."""
    settings: Mapping[str, str]
    """By task; see :func:`setting_of`."""
    meter: Meter
    stop: threading.Event
    """Set when nothing further is wanted."""
    rerun_wait_s: float

    def run(self, plan: Plan) -> Pair:
        """Both sides, again where the infrastructure fails. What was left out because of ``stop`` is missing from the result."""
        trials: list[Trial] = []
        for attempt in range(RERUNS + 1):
            if plan.remembered is not None:
                trials.append(self._again(plan, plan.remembered, attempt))
            for side in plan.order:
                if self.stop.is_set():
                    return Pair(plan, tuple(trials))
                trials.append(self._trial(plan, side, attempt))
                if trials[-1].end is TrialEnd.INFRASTRUCTURE_FAULT:
                    break
            if trials[-1].end is not TrialEnd.INFRASTRUCTURE_FAULT or attempt == RERUNS or self.stop.wait(self.rerun_wait_s * 2**attempt):
                break
        return Pair(plan, tuple(trials))

    def _again(self, plan: Plan, trial: Trial, attempt: int) -> Trial:
        return replace(trial, pair=plan.number, stage=plan.stage.value, attempt=attempt, cached=True, tokens=0, cost=0.0)

    def _trial(self, plan: Plan, side: Side, attempt: int) -> Trial:
        session = f"{self.prefix}:{plan.number}:{side}" + (f":again-{attempt}" if attempt else "")
        started = time.monotonic()
        end, score, detail = self._outcome(plan.task, self.artifacts[side], session)
        seconds = time.monotonic() - started
        used = self.meter(session)
        return Trial(
            task=plan.task.id,
            side=side,
            pair=plan.number,
            content_id=self.artifacts[side].content_id,
            end=end,
            score=score,
            detail=detail[:_DETAIL_CHARACTERS],
            session=session,
            duration_s=seconds,
            stage=plan.stage.value,
            attempt=attempt,
            setting=self.settings[plan.task.id],
            tokens=used.prompt + used.completion,
            cost=(used.prompt * self.config.price_in + used.completion * self.config.price_out) / 1e6,
        )

    def _outcome(self, task: Task, artifact: Artifact, session: str) -> tuple[TrialEnd, float, str]:
        try:
            with self.runner.run(
                artifact.tree,
                prompt=task.prompt,
                files=task.files,
                scenario=self.scenario,
                session=session,
                release=artifact.release,
                setup=task.setup,
            ) as episode:
                if episode.fault == "infrastructure":
                    return TrialEnd.INFRASTRUCTURE_FAULT, 0.0, episode.detail or "the infrastructure failed"
                if episode.fault == "harness":
                    return TrialEnd.HARNESS_FAULT, 0.0, episode.detail
                score = self.graders[task.id].grade(
                    task=task, workspace=episode.workspace, answer=episode.answer, run_command=episode.run_command
                )
                return TrialEnd.SCORED, score.value, score.detail
        except InvalidTree as error:
            return TrialEnd.HARNESS_FAULT, 0.0, error.message
        except GraderFault as error:
            return TrialEnd.INFRASTRUCTURE_FAULT, 0.0, error.message
        except OSError as error:  # SandboxError and UpstreamError among them
            return TrialEnd.INFRASTRUCTURE_FAULT, 0.0, str(error)
