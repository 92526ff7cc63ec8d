"""The evaluator: paired trials of candidate and head, fed to the gate until it decides.

**Drawing.** The task of each pair is drawn by weight, with replacement and independently of all before. The gate's hypothesis is "the mean
effect over the task distribution is at most 0"; drawn like this, each pair's difference has that mean whatever happened before, so
the bet is fair pair by pair, be the agents deterministic or not. Going through a list of tasks in turn would not do: with
deterministic agents the second round only repeats the first, and the gate would take repetition for evidence.

**Remembered runs of the head.** A run of the head for an earlier candidate, with the same content, task, model and adapter version, stands
in for a new one *in the screen only*, and at most once for each candidate. In the confirmation the head is run anew for each pair.
A score that several pairs share ties them together: one lucky run of the head would count against every pair it is in, and one unlucky
run for every pair of every candidate to come, so the differences were no longer fair bets and a chain could promote on the same accident
again and again. And it is not close in time: an upstream that has become better since would make any candidate look better. The screen
may be wrong like that, for what it lets through has to win its whole evidence on fresh pairs; at worst it costs pairs, or a candidate.
Guards of cost and latency take fresh pairs alone.

**Parallel pairs** are taken in the order they were drawn, not in the order they end: quick pairs are not typical pairs. Those that are
under way when a stage ends are ended, paid for, kept with the verdict, and not looked at.

**Budgets**: pairs, tokens, money and seconds. To stop for any of them leaves the test valid, since it is so at any time; what is under way
when tokens or money run out still comes on top.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from reef.config import EvaluationConfig
from reef.errors import ConfigError
from reef.evaluation.execution import Execution, LocalExecution, Runner
from reef.evaluation.gate import SCREEN_LEVEL, Gate, Stage, Terms
from reef.evaluation.graders import Model
from reef.evaluation.spending import fewest_pairs
from reef.evaluation.splits import SEALED
from reef.evaluation.tasks import grader_for
from reef.evaluation.trials import RERUNS, Artifact, Meter, Pair, PairRunner, Plan, Side, Tokens, setting_of
from reef.evaluation.verdicts import UNUSED, Ending, conclude, no_change, take
from reef.types import Task, Tree, Trial, TrialEnd, Verdict


class Evaluator:
    """Judges candidates on a task set.

    Args:
        runner: runs one episode with one artifact, in this process; None with an ``execution``.
        tasks: what to run; at least one that is not sealed.
        config: error, smallest effect, guards, budgets and parallelism.
        spent: how many candidates of the chain have been judged before.
        agent: the model and the adapter with its version: runs of another are not comparable.
        meter: counts the tokens of a session; by default there are none.
        model: for graders that ask one.
        rerun_wait_s: pause before the first rerun of a pair; twice as long before the next.
        execution: where trials run instead, with a runner and a model of its own.
        sealed: measure on the sealed tasks alone, for the whole budget, and decide nothing.

    Raises:
        ConfigError: no tasks, a grader that does not load, or a protected tag that no task has.
    """

    def __init__(
        self,
        *,
        runner: Runner | None = None,
        tasks: Sequence[Task],
        config: EvaluationConfig,
        spent: int,
        agent: str = "",
        meter: Meter = lambda _session: Tokens(0, 0),
        model: Model | None = None,
        rerun_wait_s: float = 2.0,
        execution: Execution | None = None,
        sealed: bool = False,
    ) -> None:
        self._tasks = tuple(task for task in tasks if (task.split == SEALED) == sealed)
        if not self._tasks:
            raise _no_tasks(sealed=sealed)
        if execution is None:
            assert runner is not None
            execution = LocalExecution(runner=runner, model=model, workers=config.parallel)
        self._execution = execution
        self._asking = frozenset(task.id for task in self._tasks if grader_for(task, model=model).needs_model)
        self._config = config
        self._agent = agent
        self._meter = meter
        self._rerun_wait_s = rerun_wait_s
        self._terms = Terms(
            alpha=config.alpha,
            spent=spent,
            min_effect=config.min_effect,
            max_pairs=config.max_pairs,
            screened=len({task.split for task in self._tasks}) > 1,
            protected={} if sealed else _groups(self._tasks, config.protect),
            max_cost_ratio=config.max_cost_ratio,
            max_latency_ratio=config.max_latency_ratio,
            measure=sealed,
        )

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
        candidate_step: int | None = None,
        remembered: Iterable[Trial] = (),
        progress: Callable[[str], None] = lambda _line: None,
    ) -> Verdict:
        """Compare a candidate with the head.

        Args:
            scenario: whose chain; the trials' exchanges are recorded there.
            candidate_id: names the trials' sessions, ``trial:<candidate>:<pair>:<side>``.
            head_step: the release the head's trials say they run.
            candidate_step: the same of the candidate's, where it is a release.
            seed: draws the same tasks in the same order again.
            remembered: trials of earlier verdicts; those of the head's bytes in the same setting serve the screen.
            progress: gets a line for each pair that counted.

        Raises:
            ConfigError: a grader gave no usable score.
        """
        started = time.monotonic()
        gate = Gate(self._terms)
        least = fewest_pairs(self._terms.share) + (fewest_pairs(SCREEN_LEVEL) if self._terms.screened else 0)
        if candidate_content_id == head_content_id:
            return no_change()
        if least > self._config.max_pairs and not self._terms.measure:
            why = f"a budget of {self._config.max_pairs} pairs cannot promote even a perfect candidate, which needs {least}"
            return conclude(gate, (), ending=Ending("pairs", why), seconds=0.0)
        artifacts: dict[Side, Artifact] = {
            "head": Artifact(head_tree, head_content_id, head_step),
            "candidate": Artifact(candidate_tree, candidate_content_id, candidate_step),
        }
        settings = {task.id: setting_of(task, agent=self._agent) for task in self._tasks}
        judging = _Judging(
            gate=gate,
            config=self._config,
            workers=self._execution.workers,
            draw=_Draw(self._tasks, gate, seed, _alike(remembered, head_content_id, settings)),
            deadline=started + self._config.max_seconds,
            progress=progress,
        )
        while gate.decision is None and not judging.ending.by:
            stop = threading.Event()
            judging.run_stage(
                PairRunner(
                    execution=self._execution,
                    asking=self._asking,
                    artifacts=artifacts,
                    config=self._config,
                    scenario=scenario,
                    prefix=f"trial:{candidate_id}",
                    settings=settings,
                    meter=self._meter,
                    stop=stop,
                    rerun_wait_s=self._rerun_wait_s,
                )
            )
        return conclude(gate, judging.trials, ending=judging.ending, seconds=time.monotonic() - started)


@dataclass(slots=True, kw_only=True)
class _Judging:
    """One candidate being judged."""

    gate: Gate
    config: EvaluationConfig
    workers: int
    draw: _Draw
    deadline: float
    progress: Callable[[str], None]
    trials: list[Trial] = field(default_factory=list)
    ending: Ending = field(default_factory=Ending)

    def run_stage(self, pairs: PairRunner) -> None:
        """Run pairs until the gate decides, the stage changes or a budget ends."""
        stage = self.gate.stage
        pending: deque[Future[Pair]] = deque()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="trial") as pool:
            try:
                while self.gate.decision is None and self.gate.stage is stage and not self._over():
                    left = self.config.max_pairs - self.gate.all_pairs
                    while len(pending) < min(self.workers, left):
                        pending.append(pool.submit(pairs.run, self.draw.next()))
                    if not wait([pending[0]], timeout=max(0.0, self.deadline - time.monotonic())).done:
                        self.ending = Ending("seconds", f"the budget of {self.config.max_seconds:g} s is used up")
                        break
                    self._take(pending.popleft().result())
            finally:
                pairs.stop.set()
                begun = [future for future in pending if not future.cancel()]
        for future in begun:
            with contextlib.suppress(ConfigError):  # a broken grader speaks up where it decides something
                self.trials.extend(replace(trial, stage=UNUSED) for trial in future.result().trials)

    def _over(self) -> bool:
        """Whether a budget is used up; says which."""
        tokens, cost = sum(trial.tokens for trial in self.trials), sum(trial.cost for trial in self.trials)
        if self.gate.all_pairs >= self.config.max_pairs:
            self.ending = Ending("pairs", f"the budget of {self.config.max_pairs} pairs is used up")
        elif self.config.max_tokens is not None and tokens >= self.config.max_tokens:
            self.ending = Ending("tokens", f"the budget of {self.config.max_tokens} tokens is used up")
        elif self.config.max_cost is not None and cost >= self.config.max_cost:
            self.ending = Ending("cost", f"the budget of {self.config.max_cost:g} in money is used up")
        return bool(self.ending.by)

    def _take(self, pair: Pair) -> None:
        self.trials.extend(pair.trials)
        if pair.fault:
            self.ending = Ending("infrastructure", f"the infrastructure failed {RERUNS + 1} times in a row ({pair.fault})")
            return
        last = pair.last
        take(self.gate, tuple(last.values()))
        scores = f"candidate {last['candidate'].score:g}, head {last['head'].score:g}"
        self.progress(f"pair {self.gate.all_pairs}, {pair.plan.task.id}: {scores}; {self.gate.reason or self.gate.progress}")


class _Draw:
    """Draws pairs."""

    def __init__(self, tasks: Sequence[Task], gate: Gate, seed: int | str, remembered: dict[str, deque[Trial]]) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a fair draw that can be repeated, not a secret
        self._tasks = tasks
        self._gate = gate
        self._remembered = remembered
        self._number = 0

    def next(self) -> Plan:
        """A pair for the stage the gate is in."""
        tasks = list(self._among())
        task = self._random.choices(tasks, weights=[task.weight for task in tasks])[0]
        order: tuple[Side, ...] = ("head", "candidate") if self._random.random() < 0.5 else ("candidate", "head")
        plan = Plan(self._number, self._gate.stage, task, order)
        self._number += 1
        known = self._remembered.get(task.id)
        if plan.stage is Stage.SCREEN and known:
            return replace(plan, order=("candidate",), remembered=known.popleft())
        return plan

    def _among(self) -> Iterator[Task]:
        terms, stage = self._gate.terms, self._gate.stage
        if stage is Stage.GUARD:
            guarded = {task for name in self._gate.unguarded for task in terms.protected[name]}
            return (task for task in self._tasks if task.id in guarded)
        if not terms.screened:
            return iter(self._tasks)
        return (task for task in self._tasks if (task.split == "search") == (stage is Stage.SCREEN))


def _no_tasks(*, sealed: bool) -> ConfigError:
    if sealed:
        return ConfigError(
            "no task is sealed", hint="Set evaluation.splits.sealed to a share of the tasks, or `split: sealed` in the task set."
        )
    return ConfigError("there are no tasks to judge a candidate on", hint="Set evaluation.tasks in serve.yaml.")


def _groups(tasks: Sequence[Task], tags: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The protected groups and their tasks."""
    groups: dict[str, tuple[str, ...]] = {f"task {task.id}": (task.id,) for task in tasks if task.protected}
    for tag in tags:
        tagged = tuple(task.id for task in tasks if tag in task.tags)
        if not tagged:
            raise ConfigError(f"evaluation.protect: no task has the tag {tag}", hint="Tags are given to tasks in the task set.")
        groups[f"tag {tag}"] = tagged
    return groups


def _alike(trials: Iterable[Trial], content_id: str, settings: dict[str, str]) -> dict[str, deque[Trial]]:
    """Runs of the head that another would be like, by task. Not those as a candidate: it was promoted because they went well."""
    found: dict[str, deque[Trial]] = {}
    for trial in trials:
        same = trial.content_id == content_id and settings.get(trial.task) == trial.setting and trial.side == "head"
        if same and not trial.cached and trial.end is not TrialEnd.INFRASTRUCTURE_FAULT:
            found.setdefault(trial.task, deque()).append(trial)
    return found
