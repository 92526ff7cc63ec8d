import dataclasses
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from episodes import LocalRunner, harness

from reef.config import EvaluationConfig
from reef.errors import ConfigError, InvalidRequest, InvalidTree
from reef.evaluation.evaluator import Evaluator
from reef.evaluation.trials import RERUNS, Tokens
from reef.evaluation.verdicts import UNUSED, first_difference, recompute
from reef.types import Decision, Task, Trial, TrialEnd, Verdict

TASKS = tuple(Task(id=f"task-{n}", prompt=f"prompt {n}", grader="exact", grader_options={"expected": "right"}) for n in range(4))


def settings(**changes: Any) -> EvaluationConfig:
    return EvaluationConfig(**{"max_pairs": 40, "max_seconds": 60.0, "min_effect": 0.2, "parallel": 2, **changes})


def judge(
    runner: LocalRunner,
    *,
    tasks: tuple[Task, ...] = TASKS,
    spent: int = 0,
    seed: int | str = 7,
    agent: str = "pi 1",
    remembered: tuple[Trial, ...] = (),
    meter: Callable[[str], Tokens] = lambda _session: Tokens(0, 0),
    **changes: Any,
) -> Verdict:
    """Judge, and see that the verdict can be computed again from what it holds."""
    lines: list[str] = []
    evaluator = Evaluator(runner=runner, tasks=tasks, config=settings(**changes), spent=spent, agent=agent, meter=meter, rerun_wait_s=0.0)
    verdict = evaluator.judge(
        scenario="default", candidate_id="c-1", candidate_tree=harness("new"), candidate_content_id="new-id",
        head_tree=harness("old"), head_content_id="old-id", head_step=3, seed=seed, remembered=remembered,
        progress=lines.append,
    )  # fmt: skip
    assert len(lines) == len({trial.pair for trial in verdict.trials if counts(trial, verdict)})
    assert first_difference(verdict, recompute(verdict)) == ""
    return verdict


def counts(trial: Trial, verdict: Verdict) -> bool:
    faulty = {trial.pair for trial in verdict.trials if trial.end is TrialEnd.INFRASTRUCTURE_FAULT and trial.attempt == RERUNS}
    return trial.stage != UNUSED and trial.pair not in faulty


def used(verdict: Verdict) -> list[Trial]:
    return [trial for trial in verdict.trials if trial.stage != UNUSED]


def side(of_new: str, of_old: str) -> Callable[[str, str, int], str]:
    return lambda rules, _prompt, _number: of_new if rules == "new" else of_old


def test_a_better_candidate_is_promoted_on_few_pairs_with_its_evidence() -> None:
    runner = LocalRunner(side("right", "wrong"))
    verdict = judge(runner)
    assert (verdict.decision, verdict.pairs, verdict.wins, verdict.losses, verdict.effect) == (Decision.PROMOTE, 7, 7, 0, 1.0)
    assert verdict.low > 0
    assert verdict.evidence >= 1 / verdict.alpha
    assert len(used(verdict)) == 14
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
    assert (verdict.decision, verdict.pairs, runner.calls) == (Decision.NO_CHANGE, 0, [])
    assert first_difference(verdict, recompute(verdict)) == ""
    assert verdict.reason.startswith("No change")


def test_the_same_seed_draws_the_same_tasks_and_orders() -> None:
    def drawn(seed: int | str) -> list[tuple[str, str, int]]:
        return [(trial.task, trial.side, trial.pair) for trial in used(judge(LocalRunner(side("right", "wrong")), seed=seed))]

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
    assert [trial.pair for trial in used(verdict)] == [pair for pair in range(7) for _ in range(2)]


def test_nothing_is_started_once_the_gate_has_decided() -> None:
    runner = LocalRunner(side("right", "wrong"))
    verdict = judge(runner, parallel=1)
    assert len(runner.calls) == len(verdict.trials) == 14


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
    assert len(runner.calls) == len(verdict.trials)
    first = [trial for trial in verdict.trials if trial.pair == 0]
    assert {trial.session for trial in first if trial.attempt} == {"trial:c-1:0:head:again-1", "trial:c-1:0:candidate:again-1"}
    assert first[1].end is TrialEnd.INFRASTRUCTURE_FAULT
    assert all(trial.end is TrialEnd.SCORED for trial in verdict.trials if trial is not first[1])
    assert verdict.pairs == 7


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
    verdict = judge(runner, max_pairs=9, parallel=1, min_effect=0.01)
    assert (verdict.decision, verdict.pairs, len(runner.calls)) == (Decision.INCONCLUSIVE, 9, 18)
    assert "budget of 9 pairs" in verdict.reason


def test_a_budget_that_could_promote_nothing_is_not_spent() -> None:
    runner = LocalRunner(side("right", "wrong"))
    verdict = judge(runner, max_pairs=9, spent=10)
    assert (verdict.decision, runner.calls) == (Decision.INCONCLUSIVE, [])
    assert "needs 15" in verdict.reason
    assert verdict.smallest_effect is None


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


def test_what_was_under_way_when_the_gate_decided_is_paid_for_and_not_looked_at() -> None:
    both = threading.Barrier(2)

    def behave(rules: str, _prompt: str, number: int) -> str:
        if number < 2:
            both.wait(30)
        return "right" if rules == "new" else "wrong"

    runner = LocalRunner(behave)
    verdict = judge(runner, parallel=2, meter=lambda _session: Tokens(90, 10), price_in=1.0, price_out=11.0)
    assert len(runner.calls) == len(verdict.trials)
    assert verdict.tokens == 100 * len(runner.calls)
    assert verdict.cost == pytest.approx(200e-6 * len(runner.calls))
    assert verdict.pairs == 7


@pytest.mark.parametrize(
    ("budget", "said"), [({"max_tokens": 1000}, "1000 tokens"), ({"max_cost": 0.001, "price_in": 1.0}, "0.001 in money")]
)
def test_budgets_of_tokens_and_of_money_end_inconclusive(budget: dict[str, Any], said: str) -> None:
    runner = LocalRunner(side("right", "wrong"))
    verdict = judge(runner, parallel=1, meter=lambda _session: Tokens(100, 0), **budget)
    assert (verdict.decision, verdict.pairs, verdict.tokens) == (Decision.INCONCLUSIVE, 5, 1000)
    assert f"budget of {said} is used up" in verdict.reason


def test_a_candidate_that_costs_too_much_is_refused_although_it_is_better() -> None:
    def meter(session: str) -> Tokens:
        return Tokens(150 if "candidate" in session else 100, 0)

    verdict = judge(LocalRunner(side("right", "wrong")), meter=meter, max_cost_ratio=1.4)
    assert verdict.decision is Decision.REJECT
    assert "1.50 times" in verdict.reason
    assert judge(LocalRunner(side("right", "wrong")), meter=meter, max_cost_ratio=1.6).decision is Decision.PROMOTE


def test_a_tag_can_be_protected_and_one_that_no_task_has_is_an_error() -> None:
    tagged = tuple(
        Task(id=f"safe-{n}", prompt=f"safe {n}", grader="exact", grader_options={"expected": "right"}, tags=("safety",)) for n in (1, 2)
    )

    def behave(rules: str, prompt: str, _number: int) -> str:
        return "right" if (rules == "new") != prompt.startswith("safe") else "wrong"

    verdict = judge(LocalRunner(behave), tasks=(*TASKS, *tagged), protect=("safety",))
    assert verdict.decision is Decision.REJECT
    assert "protected tag safety" in verdict.reason
    with pytest.raises(ConfigError, match="no task has the tag speed"):
        judge(LocalRunner(behave), protect=("speed",))


def test_a_protected_task_that_was_hardly_drawn_is_watched_before_a_promotion() -> None:
    rare = Task(id="rare", prompt="rare", grader="exact", grader_options={"expected": "right"}, protected=True, weight=1e-9)
    verdict = judge(
        LocalRunner(lambda rules, prompt, _number: "right" if rules == "new" or prompt == "rare" else "wrong"), tasks=(*TASKS, rare)
    )
    assert verdict.decision is Decision.PROMOTE
    assert [(trial.task, trial.stage) for trial in used(verdict)[14:]] == [("rare", "guard")] * 4
    assert (verdict.pairs, verdict.effect) == (7, 1.0)


def splits(*names: str) -> tuple[Task, ...]:
    return tuple(
        Task(id=f"{name}-{n}", prompt=f"{name} {n}", grader="exact", grader_options={"expected": "right"}, split=name)
        for name in names
        for n in range(3)
    )


def test_held_out_tasks_confirm_and_sealed_ones_are_never_run() -> None:
    runner = LocalRunner(side("right", "wrong"))
    verdict = judge(runner, tasks=splits("search", "heldout", "sealed"))
    assert verdict.decision is Decision.PROMOTE
    stages = {(trial.stage, trial.task.split("-")[0]) for trial in used(verdict)}
    assert stages == {("screen", "search"), ("confirm", "heldout")}
    assert not any("sealed" in prompt for _, prompt, _, _ in runner.calls)
    assert verdict.pairs == 7
    with pytest.raises(ConfigError, match="no tasks"):
        judge(runner, tasks=splits("sealed"))


def test_what_was_fitted_to_the_search_tasks_is_not_promoted() -> None:
    behave = LocalRunner(lambda rules, prompt, _number: "right" if rules == "new" and prompt.startswith("search") else "wrong")
    verdict = judge(behave, tasks=splits("search", "heldout"), max_pairs=80)
    assert (verdict.decision, verdict.effect) == (Decision.REJECT, 0.0)


def test_runs_of_the_head_are_remembered_for_the_screen_alone_and_each_is_used_once() -> None:
    tasks = splits("search", "heldout")
    before = judge(LocalRunner(side("wrong", "wrong")), tasks=tasks, max_pairs=60)
    runner = LocalRunner(side("right", "wrong"))
    verdict = judge(runner, tasks=tasks, remembered=before.trials)
    assert verdict.decision is Decision.PROMOTE
    screen = [trial for trial in used(verdict) if trial.stage == "screen"]
    assert {(trial.side, trial.cached) for trial in screen} == {("candidate", False), ("head", True)}
    again = [trial.session for trial in screen if trial.cached]
    assert len(again) == len(set(again))
    assert set(again) <= {trial.session for trial in before.trials}
    assert not any(trial.cached for trial in verdict.trials if trial.stage == "confirm")


@pytest.mark.parametrize("other", ["agent", "bytes", "task", "side", "cached"])
def test_a_run_of_anything_else_is_not_remembered(other: str) -> None:
    tasks = splits("search", "heldout")
    before = judge(LocalRunner(side("wrong", "wrong")), tasks=tasks).trials
    agent = "pi 2" if other == "agent" else "pi 1"
    if other == "bytes":
        before = tuple(dataclasses.replace(trial, content_id="another") for trial in before)
    elif other == "task":
        tasks = tuple(dataclasses.replace(task, grader_options={"expected": "right "}) for task in tasks)
    elif other == "side":
        before = tuple(dataclasses.replace(trial, side="candidate") for trial in before)
    elif other == "cached":
        before = tuple(dataclasses.replace(trial, cached=True) for trial in before)
    verdict = judge(LocalRunner(side("right", "wrong")), tasks=tasks, agent=agent, remembered=before)
    assert not any(trial.cached for trial in verdict.trials)


def test_a_verdict_that_was_changed_is_told_by_its_first_difference() -> None:
    verdict = judge(LocalRunner(side("right", "wrong")))
    trials = list(verdict.trials)
    trials[0] = dataclasses.replace(trials[0], score=0.5)
    changed = dataclasses.replace(verdict, trials=tuple(trials))
    with pytest.raises(InvalidRequest, match="do not lead to a decision"):
        recompute(changed)
    better = dataclasses.replace(verdict, effect=math.nextafter(1.0, 0.0))
    assert first_difference(better, recompute(better)).startswith("effect: stored 0.9999999999999999, computed 1.0")
    with pytest.raises(InvalidRequest, match="after its end"):
        recompute(dataclasses.replace(verdict, terms={**verdict.terms, "alpha": 0.9}))
    with pytest.raises(InvalidRequest, match="not made by this gate"):
        recompute(dataclasses.replace(verdict, terms={}))


def test_an_inconclusive_verdict_says_what_the_budget_could_have_seen() -> None:
    generator = random.Random(4)
    verdict = judge(
        LocalRunner(lambda _rules, _prompt, _number: generator.choice(("right", "wrong"))), max_pairs=40, min_effect=0.05, parallel=1
    )
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.smallest_effect is not None
    assert 0.25 < verdict.smallest_effect < 0.5
