"""Runs trials: one task with one artifact, graded; and pairs of them, both sides again where the infrastructure failed.

**Pairing.** Both sides of a pair run one after the other in the same thread, in random order: close in time, so that a slow or degraded
upstream hits both, and neither side is always the second. Where each of them runs is up to the execution and no matter of the side.

**Faults.** A fault of the infrastructure says nothing about either side: the pair is run again, both sides, a bounded number of times. A
fault of the harness (time-out, crash) is a score of 0 for it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from reef.config import EvaluationConfig
from reef.evaluation.execution import GRADING, Execution, Job
from reef.evaluation.gate import Stage
from reef.types import Task, Tree, Trial, TrialEnd

RERUNS = 2
"""How often a pair is run again for faults of the infrastructure before judging is given up."""
_DETAIL_CHARACTERS = 500

Side = Literal["head", "candidate"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a session used."""

    prompt: int
    completion: int

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.prompt + other.prompt, self.completion + other.completion)

    @property
    def all(self) -> int:
        return self.prompt + self.completion

    def cost(self, config: EvaluationConfig) -> float:
        """In money, by the configured prices."""
        return (self.prompt * config.price_in + self.completion * config.price_out) / 1e6


Meter = Callable[[str], Tokens]
"""Counts the tokens of a session of the scenario that is judged; its records are written by the time its run has ended. What a grader asked
for a trial is in a session of its own, the trial's with :data:`~reef.evaluation.execution.GRADING` behind it."""


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

    execution: Execution
    asking: frozenset[str]
    """The tasks whose graders ask a model."""
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
        free = replace(trial, tokens=0, cost=0.0, grading_tokens=0, grading_cost=0.0)
        return replace(free, pair=plan.number, stage=plan.stage.value, attempt=attempt, cached=True)

    def _trial(self, plan: Plan, side: Side, attempt: int) -> Trial:
        session = f"{self.prefix}:{plan.number}:{side}" + (f":again-{attempt}" if attempt else "")
        started = time.monotonic()
        artifact = self.artifacts[side]
        job = Job(task=plan.task, tree=artifact.tree, scenario=self.scenario, session=session, release=artifact.release)
        outcome = self.execution.run(job, stop=self.stop)
        seconds = outcome.seconds or time.monotonic() - started  # its own, without the wait for a worker
        grading = self.meter(session + GRADING) if plan.task.id in self.asking else Tokens(0, 0)
        used = self.meter(session) + grading
        return Trial(
            task=plan.task.id,
            side=side,
            pair=plan.number,
            content_id=artifact.content_id,
            end=outcome.end,
            score=outcome.score,
            detail=outcome.detail[:_DETAIL_CHARACTERS],
            session=session,
            duration_s=seconds,
            stage=plan.stage.value,
            attempt=attempt,
            setting=self.settings[plan.task.id],
            tokens=used.all,
            cost=used.cost(self.config),
            grading_tokens=grading.all,
            grading_cost=grading.cost(self.config),
        )
