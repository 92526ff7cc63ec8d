"""The evaluator: paired trials of candidate and head, fed to the gate until it decides.

**Drawing.** The task of each pair is drawn uniformly, with replacement and independently of all before. The gate's hypothesis is "the mean
effect over the task distribution is at most 0"; drawn like this, each pair's difference has that mean whatever happened before, so
the bet is fair pair by pair, be the agents deterministic or not. Going through a list of tasks in turn would not do: with
deterministic agents the second round only repeats the first, and the gate would take repetition for evidence.

**Pairing.** Both sides of a pair run one after the other in the same thread, in random order: close in time, so that a slow or degraded
upstream hits both, and neither side is always the second. The head is run anew for each pair. A remembered score would tie the pairs that
share it together, and the differences would no longer be fair bets.

**Parallel pairs** are taken in the order they were drawn, not in the order they end: quick pairs are not typical pairs.

**Faults.** A fault of the infrastructure says nothing about either side: the pair is run again, both sides. A fault of a harness (time-out,
crash) is a score of 0.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from reef.config import EvaluationConfig
from reef.errors import ConfigError, InvalidTree
from reef.evaluation.gate import Gate, error_share, fewest_pairs
from reef.evaluation.graders import RunCommand
from reef.evaluation.tasks import grader_for
from reef.types import Decision, Task, Tree, Trial, TrialEnd, Verdict

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


class Runner(Protocol):
    """Runs episodes, as `reef.harness.episode.EpisodeRunner` does; called from several threads."""

    def run(
        self, tree: Tree, *, prompt: str, files: Mapping[str, str], scenario: str, session: str, release: int | None
    ) -> AbstractContextManager[Episode]:
        """Run the agent; the workspace lasts as long as the context."""
        ...


@dataclass(frozen=True, slots=True)
class _Artifact:
    tree: Tree
    content_id: str
    release: int | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """A pair to run."""

    number: int
    task: Task
    order: tuple[Side, Side]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A pair that was run: two trials, or fewer where the infrastructure failed to the end."""

    plan: _Plan
    trials: Mapping[str, Trial]

    @property
    def fault(self) -> str:
        """What the infrastructure's fault was; empty where both sides count."""
        return next((trial.detail for trial in self.trials.values() if trial.end is TrialEnd.INFRASTRUCTURE_FAULT), "")


class Evaluator:
    """Judges candidates on a task set.

    Args:
        runner: runs one episode with one artifact.
        tasks: what to run; at least one.
        config: error, smallest effect, budgets and parallelism.
        spent: how many candidates of the chain have been judged before.
        rerun_wait_s: pause before the first rerun of a pair; twice as long before the next.

    Raises:
        ConfigError: no tasks, or a grader that does not load.
    """

    def __init__(self, *, runner: Runner, tasks: Sequence[Task], config: EvaluationConfig, spent: int, rerun_wait_s: float = 2.0) -> None:
        if not tasks:
            raise ConfigError("there are no tasks to judge a candidate on", hint="Set evaluation.tasks in serve.yaml.")
        self._runner = runner
        self._tasks = tuple(tasks)
        self._graders = {task.id: grader_for(task) for task in tasks}
        self._config = config
        self._rerun_wait_s = rerun_wait_s
        self._alpha = error_share(config.alpha, spent=spent)

    def judge(
        self,
        *,
        scenario: str,
        candidate_id: str,
        candidate_tree: Tree,
        candidate_content_id: str,
        head_tree: Tree,
        head_content_id: str,
        head_step: int,
        seed: int | str,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> Verdict:
        """Compare a candidate with the head.

        Args:
            scenario: whose chain; the trials' exchanges are recorded there.
            candidate_id: names the trials' sessions, ``trial:<candidate>:<pair>:<side>``.
            head_step: the release the head's trials say they run.
            seed: draws the same tasks in the same order again.
            progress: gets a line for each pair that counted.

        Raises:
            ConfigError: a grader gave no usable score.
        """
        started = time.monotonic()
        gate = Gate(
            alpha=self._alpha,
            min_effect=self._config.min_effect,
            protected=frozenset(task.id for task in self._tasks if task.protected),
        )
        least = fewest_pairs(self._alpha)
        trials: list[Trial] = []
        if candidate_content_id == head_content_id:
            gate.give_up("no change: the candidate's bytes are the head's")
        elif least > self._config.max_pairs:
            gate.give_up(f"a budget of {self._config.max_pairs} pairs cannot promote even a perfect candidate, which needs {least}")
        else:
            artifacts: dict[Side, _Artifact] = {
                "head": _Artifact(head_tree, head_content_id, head_step),
                "candidate": _Artifact(candidate_tree, candidate_content_id, None),
            }
            pairs = self._pairs(
                gate, artifacts, scenario=scenario, prefix=f"trial:{candidate_id}", seed=seed, deadline=started + self._config.max_seconds
            )
            with contextlib.closing(pairs):
                for pair in pairs:
                    trials.extend(pair.trials[side] for side in pair.plan.order if side in pair.trials)
                    self._take(pair, gate, progress)
        assert gate.decision is not None
        return _verdict(gate, trials, seconds=time.monotonic() - started)

    def _take(self, pair: _Pair, gate: Gate, progress: Callable[[str], None]) -> None:
        if pair.fault:
            gate.give_up(f"the infrastructure failed {RERUNS + 1} times in a row ({pair.fault})")
            return
        head, candidate = pair.trials["head"].score, pair.trials["candidate"].score
        gate.observe(candidate - head, task=pair.plan.task.id)
        needed = f"evidence {gate.evidence:.3g} of {1 / gate.alpha:.0f}"
        progress(f"pair {gate.pairs}, {pair.plan.task.id}: candidate {candidate:g}, head {head:g}; {needed}")

    def _pairs(
        self, gate: Gate, artifacts: Mapping[Side, _Artifact], *, scenario: str, prefix: str, seed: int | str, deadline: float
    ) -> Generator[_Pair, None, None]:
        """Run pairs until the gate decides or a budget ends; yield them in the order they were drawn."""
        stop = threading.Event()
        plans = self._draw(seed)
        pending: deque[Future[_Pair | None]] = deque()
        drawn = 0

        def run(plan: _Plan) -> _Pair | None:
            return self._run_pair(plan, artifacts, scenario=scenario, prefix=prefix, stop=stop)

        with ThreadPoolExecutor(self._config.parallel, thread_name_prefix="trial") as pool:
            try:
                while gate.decision is None:
                    while len(pending) < self._config.parallel and drawn < self._config.max_pairs:
                        pending.append(pool.submit(run, next(plans)))
                        drawn += 1
                    if not pending:
                        gate.give_up(f"the budget of {self._config.max_pairs} pairs is used up")
                        return
                    if not wait([pending[0]], timeout=max(0.0, deadline - time.monotonic())).done:
                        gate.give_up(f"the budget of {self._config.max_seconds:g} s is used up")
                        return
                    pair = pending.popleft().result()
                    assert pair is not None
                    yield pair
            finally:
                stop.set()
                for future in pending:
                    future.cancel()

    def _draw(self, seed: int | str) -> Iterator[_Plan]:
        generator = random.Random(seed)  # noqa: S311 - a fair draw that can be repeated, not a secret
        number = 0
        while True:
            task = generator.choice(self._tasks)
            order: tuple[Side, Side] = ("head", "candidate") if generator.random() < 0.5 else ("candidate", "head")
            yield _Plan(number, task, order)
            number += 1

    def _run_pair(
        self, plan: _Plan, artifacts: Mapping[Side, _Artifact], *, scenario: str, prefix: str, stop: threading.Event
    ) -> _Pair | None:
        """Both sides, again where the infrastructure fails; None where it is no longer wanted."""
        for attempt in range(RERUNS + 1):
            trials: dict[str, Trial] = {}
            for side in plan.order:
                if stop.is_set():
                    return None
                session = f"{prefix}:{plan.number}:{side}" + (f":again-{attempt}" if attempt else "")
                trials[side] = self._run_trial(plan, side, artifacts[side], scenario=scenario, session=session)
                if trials[side].end is TrialEnd.INFRASTRUCTURE_FAULT:
                    break
            pair = _Pair(plan, trials)
            if not pair.fault or attempt == RERUNS or stop.wait(self._rerun_wait_s * 2**attempt):
                return pair
        raise AssertionError("unreachable")

    def _run_trial(self, plan: _Plan, side: Side, artifact: _Artifact, *, scenario: str, session: str) -> Trial:
        started = time.monotonic()
        task = plan.task

        def trial(end: TrialEnd, detail: str, *, score: float = 0.0) -> Trial:
            seconds = time.monotonic() - started
            return Trial(task.id, side, plan.number, artifact.content_id, end, score, detail[:_DETAIL_CHARACTERS], session, seconds)

        try:
            with self._runner.run(
                artifact.tree, prompt=task.prompt, files=task.files, scenario=scenario, session=session, release=artifact.release
            ) as episode:
                if episode.fault == "infrastructure":
                    return trial(TrialEnd.INFRASTRUCTURE_FAULT, episode.detail or "the infrastructure failed")
                if episode.fault == "harness":
                    return trial(TrialEnd.HARNESS_FAULT, episode.detail)
                score = self._graders[task.id].grade(
                    task=task, workspace=episode.workspace, answer=episode.answer, run_command=episode.run_command
                )
                return trial(TrialEnd.SCORED, score.detail, score=score.value)
        except InvalidTree as error:
            return trial(TrialEnd.HARNESS_FAULT, error.message)
        except OSError as error:  # SandboxError and UpstreamError among them
            return trial(TrialEnd.INFRASTRUCTURE_FAULT, str(error))


def _verdict(gate: Gate, trials: Sequence[Trial], *, seconds: float) -> Verdict:
    low, high = gate.interval
    return Verdict(
        decision=gate.decision or Decision.INCONCLUSIVE,
        reason=gate.reason,
        effect=gate.effect,
        low=low,
        high=high,
        pairs=gate.pairs,
        wins=gate.wins,
        losses=gate.losses,
        evidence=gate.evidence,
        alpha=gate.alpha,
        seconds=seconds,
        trials=tuple(trials),
    )
