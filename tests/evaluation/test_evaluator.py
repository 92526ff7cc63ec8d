import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from episodes import LocalRunner, harness

from reef.config import EvaluationConfig
from reef.errors import ConfigError, InvalidTree
from reef.evaluation.evaluator import RERUNS, Evaluator
from reef.types import Decision, Task, TrialEnd, Verdict

TASKS = tuple(Task(id=f"task-{n}", prompt=f"prompt {n}", grader="exact", grader_options={"expected": "right"}) for n in range(4))


def settings(**changes: Any) -> EvaluationConfig:
    return EvaluationConfig(**{"max_pairs": 40, "max_seconds": 60.0, "min_effect": 0.2, "parallel": 2, **changes})


def judge(runner: LocalRunner, *, tasks: tuple[Task, ...] = TASKS, spent: int = 0, seed: int | str = 7, **changes: Any) -> Verdict:
    lines: list[str] = []
    evaluator = Evaluator(runner=runner, tasks=tasks, config=settings(**changes), spent=spent, rerun_wait_s=0.0)
    verdict = evaluator.judge(
        scenario="default", candidate_id="c-1", candidate_tree=harness("new"), candidate_content_id="new-id",
        head_tree=harness("old"), head_content_id="old-id", head_step=3, seed=seed, progress=lines.append,
    )  # fmt: skip
    assert len(lines) == verdict.pairs
    return verdict


def side(of_new: str, of_old: str) -> Callable[[str, str, int], str]:
    return lambda rules, _prompt, _number: of_new if rules == "new" else of_old


def test_a_better_candidate_is_promoted_on_few_pairs_with_its_evidence() -> None:
    runner = LocalRunner(side("right", "wrong"))
    verdict = judge(runner)
    assert (verdict.decision, verdict.pairs, verdict.wins, verdict.losses, verdict.effect) == (Decision.PROMOTE, 8, 8, 0, 1.0)
    assert verdict.low > 0
    assert verdict.evidence >= 1 / verdict.alpha
    assert len(verdict.trials) == 16
    assert {(trial.side, trial.content_id, trial.score) for trial in verdict.trials} == {
        ("candidate", "new-id", 1.0),
        ("head", "old-id", 0.0),
    }
    assert {trial.session for trial in verdict.trials if trial.pair == 5} == {"trial:c-1:5:head", "trial:c-1:5:candidate"}
    assert {(rules, release) for rules, _, release, _ in runner.calls} == {("new", None), ("old", 3)}


def test_a_harmful_candidate_and_a_useless_one_are_rejected() -> None:
    harmful, useless = judge(LocalRunner(side("wrong", "right"))), judge(LocalRunner(side("right", "right")))
    assert harmful.decision is useless.decision is Decision.REJECT
    assert harmful.pairs < 8
    assert useless.effect == 0.0


def test_the_same_bytes_are_no_change_and_run_nothing() -> None:
    runner = LocalRunner(side("right", "right"))
    verdict = Evaluator(runner=runner, tasks=TASKS, config=settings(), spent=0).judge(
        scenario="default", candidate_id="c-1", candidate_tree=harness("old"), candidate_content_id="old-id",
        head_tree=harness("old"), head_content_id="old-id", head_step=1, seed=1,
    )  # fmt: skip
    assert (verdict.decision, verdict.pairs, runner.calls) == (Decision.INCONCLUSIVE, 0, [])
    assert verdict.reason.startswith("No change")


def test_the_same_seed_draws_the_same_tasks_and_orders() -> None:
    def drawn(seed: int | str) -> list[tuple[str, str, int]]:
        return [(trial.task, trial.side, trial.pair) for trial in judge(LocalRunner(side("right", "wrong")), seed=seed).trials]

    assert drawn("c-1") == drawn("c-1")
    assert drawn("c-1") != drawn("c-2")
    assert {first for _, first, _ in drawn(3)[::2]} == {"head", "candidate"}


def test_pairs_run_at_once_but_count_in_the_order_they_were_drawn() -> None:
    together = threading.Barrier(3)
    late = threading.Event()

    def behave(rules: str, _prompt: str, number: int) -> str:
        if number < 3:
            together.wait(30)  # passes only when three trials run at the same time
        if number == 0:
            assert late.wait(30)  # the pair that began first ends last of the three
        elif number >= 4:
            late.set()
        return "right" if rules == "new" else "wrong"

    runner = LocalRunner(behave)
    verdict = judge(runner, parallel=3)
    assert runner.most_running == 3
    assert [trial.pair for trial in verdict.trials] == [pair for pair in range(8) for _ in range(2)]


def test_nothing_is_started_once_the_gate_has_decided() -> None:
    runner = LocalRunner(side("right", "wrong"))
    verdict = judge(runner, parallel=1)
    assert len(runner.calls) == len(verdict.trials) == 16


def test_a_fault_of_the_harness_counts_against_it() -> None:
    verdict = judge(LocalRunner(side("!harness", "right")))
    assert verdict.decision is Decision.REJECT
    assert {(trial.end, trial.score) for trial in verdict.trials if trial.side == "candidate"} == {(TrialEnd.HARNESS_FAULT, 0.0)}


def test_a_tree_that_the_adapter_cannot_take_is_a_fault_of_the_harness() -> None:
    def behave(rules: str, _prompt: str, _number: int) -> str:
        if rules == "new":
            raise InvalidTree("no such setting")
        return "right"

    verdict = judge(LocalRunner(behave))
    assert verdict.decision is Decision.REJECT
    assert "no such setting" in {trial.detail for trial in verdict.trials}


def test_a_fault_of_the_infrastructure_is_run_again_for_both_sides() -> None:
    runner = LocalRunner(lambda rules, _prompt, number: "!infrastructure" if number == 1 else ("right" if rules == "new" else "wrong"))
    verdict = judge(runner, parallel=1)
    assert verdict.decision is Decision.PROMOTE
    assert all(trial.end is TrialEnd.SCORED for trial in verdict.trials)
    assert len(runner.calls) == len(verdict.trials) + 2
    assert {trial.session for trial in verdict.trials if trial.pair == 0} == {"trial:c-1:0:head:again-1", "trial:c-1:0:candidate:again-1"}


@pytest.mark.parametrize("error", [None, ConnectionError("the upstream is gone")])
def test_an_infrastructure_that_stays_broken_ends_inconclusive_with_the_reason(error: Exception | None) -> None:
    def behave(_rules: str, _prompt: str, number: int) -> str:
        if number < 4:
            return "right"
        if error is not None:
            raise error
        return "!infrastructure"

    runner = LocalRunner(behave)
    verdict = judge(runner, parallel=1)
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.pairs == 2
    assert f"failed {RERUNS + 1} times in a row" in verdict.reason
    assert str(error or "!infrastructure") in verdict.reason
    assert verdict.trials[-1].end is TrialEnd.INFRASTRUCTURE_FAULT
    assert len(runner.calls) == 4 + RERUNS + 1


def test_the_budget_of_pairs_ends_inconclusive_with_what_was_seen() -> None:
    runner = LocalRunner(lambda rules, _prompt, number: "right" if number % 4 == 0 else "wrong")
    verdict = judge(runner, max_pairs=9, parallel=1)
    assert (verdict.decision, verdict.pairs, len(runner.calls)) == (Decision.INCONCLUSIVE, 9, 18)
    assert "budget of 9 pairs" in verdict.reason


def test_a_budget_that_could_promote_nothing_is_not_spent() -> None:
    runner = LocalRunner(side("right", "wrong"))
    verdict = judge(runner, max_pairs=9, spent=10)
    assert (verdict.decision, runner.calls) == (Decision.INCONCLUSIVE, [])
    assert "needs 15" in verdict.reason


def test_the_budget_of_time_ends_inconclusive() -> None:
    def behave(_rules: str, _prompt: str, number: int) -> str:
        if number >= 4:
            time.sleep(0.4)  # a slow agent, longer than the budget
        return "right"

    verdict = judge(LocalRunner(behave), max_seconds=0.3, parallel=1)
    assert verdict.decision is Decision.INCONCLUSIVE
    assert "budget of 0.3 s" in verdict.reason


def test_a_regression_on_a_protected_task_rejects() -> None:
    guarded = (*TASKS[:3], Task(id="guard", prompt="guard", grader="exact", grader_options={"expected": "right"}, protected=True))

    def behave(rules: str, prompt: str, _number: int) -> str:
        return "right" if (rules == "new") != (prompt == "guard") else "wrong"

    verdict = judge(LocalRunner(behave), tasks=guarded)
    assert verdict.decision is Decision.REJECT
    assert "protected task guard" in verdict.reason
    assert verdict.effect > 0


def test_a_broken_grader_is_an_error_and_no_verdict() -> None:
    broken = (Task(id="b", prompt="p", grader="command", grader_options={"command": ["echo", "nan"], "score": "last_line"}),)
    with pytest.raises(ConfigError, match="score nan"):
        judge(LocalRunner(side("right", "wrong")), tasks=broken)
    with pytest.raises(ConfigError, match="no tasks"):
        judge(LocalRunner(side("right", "wrong")), tasks=())
