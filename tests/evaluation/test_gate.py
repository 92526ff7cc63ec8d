import doctest
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reef.evaluation import gate as gate_module
from reef.evaluation.eprocess import INTERVAL_LEVEL
from reef.evaluation.gate import REJECT_LEVEL, Gate, Stage, Terms
from reef.evaluation.guards import Price
from reef.evaluation.spending import error_share
from reef.types import Decision

FIRST = error_share(0.05, spent=0)


def new(**changes: Any) -> Gate:
    return Gate(Terms(**{"alpha": 0.05, "min_effect": 0.1, "max_pairs": 100, **changes}))


def judge(draw: Callable[[], float], *, min_effect: float = 0.2, budget: int = 60, **changes: Any) -> Gate:
    gate = new(min_effect=min_effect, max_pairs=budget, **changes)
    while gate.decision is None and gate.all_pairs < budget:
        gate.observe(draw(), task="t")
    gate.give_up("the budget is used up")
    return gate


def binary(generator: random.Random, base: float, effect: float) -> Callable[[], float]:
    return lambda: float(generator.random() < base + effect) - float(generator.random() < base)


def graded(generator: random.Random, _base: float, _effect: float) -> Callable[[], float]:
    return lambda: generator.random() - generator.random()


def tied(generator: random.Random, _base: float, _effect: float) -> Callable[[], float]:
    return lambda: generator.choice((-1.0, 1.0)) if generator.random() < 0.1 else 0.0


def skewed(generator: random.Random, _base: float, _effect: float) -> Callable[[], float]:
    """Mean 0: often a little better, seldom much worse."""
    return lambda: 0.1 if generator.random() < 10 / 11 else -1.0


@pytest.mark.parametrize("screened", [False, True])
@pytest.mark.parametrize("scores", [binary, graded, tied, skewed])
def test_a_candidate_no_better_than_the_head_is_promoted_no_more_often_than_stated(scores: Any, screened: bool) -> None:
    streams = 400
    gates = [judge(scores(random.Random(seed), 0.5, 0.0), screened=screened) for seed in range(streams)]
    promoted = sum(gate.decision is Decision.PROMOTE for gate in gates)
    # the bound on the mean holds exactly; four standard errors above it would be a broken gate and not bad luck
    assert promoted <= streams * FIRST + 4 * math.sqrt(streams * FIRST * (1 - FIRST))


@pytest.mark.parametrize("screened", [False, True])
def test_a_candidate_with_the_smallest_wanted_effect_is_rejected_no_more_often_than_stated(screened: bool) -> None:
    streams = 300
    gates = [judge(binary(random.Random(seed), 0.4, 0.2), screened=screened) for seed in range(streams)]
    assert sum(gate.decision is Decision.REJECT for gate in gates) <= streams * REJECT_LEVEL + 4 * math.sqrt(streams * REJECT_LEVEL)


def test_a_large_effect_is_promoted_soon() -> None:
    gates = [judge(binary(random.Random(seed), 0.3, 0.5)) for seed in range(100)]
    assert sum(gate.decision is Decision.PROMOTE for gate in gates) >= 90
    assert sum(gate.pairs for gate in gates) / len(gates) < 25


def test_harmful_and_useless_candidates_are_rejected_before_the_budget_ends() -> None:
    assert judge(lambda: -1.0).pairs <= 6
    useless = judge(lambda: 0.0)
    assert useless.decision is Decision.REJECT
    assert useless.pairs <= 20


def test_with_held_out_tasks_the_evidence_of_the_screen_promotes_nothing() -> None:
    gate = new(screened=True)
    assert gate.stage is Stage.SCREEN
    while gate.stage is Stage.SCREEN:
        gate.observe(1.0, task="search")
    screening = gate.all_pairs
    assert 1 < screening < 6
    assert (gate.stage, gate.evidence, gate.pairs) == (Stage.CONFIRM, 1.0, screening)
    while gate.decision is None:
        gate.observe(1.0, task="heldout")
    assert (gate.decision, gate.pairs, gate.all_pairs) == (Decision.PROMOTE, 7, 7 + screening)
    assert f"after {screening} pairs of screening" in gate.reason


def test_what_is_better_on_the_search_tasks_alone_is_not_promoted() -> None:
    gate = new(screened=True, min_effect=0.2)
    while gate.decision is None:
        gate.observe(1.0 if gate.stage is Stage.SCREEN else 0.0, task="t")
    assert (gate.decision, gate.effect) == (Decision.REJECT, 0.0)


def test_what_is_useless_on_the_search_tasks_never_meets_the_held_out_ones() -> None:
    gate = judge(lambda: -1.0, screened=True)
    assert (gate.decision, gate.shown, gate.evidence) == (Decision.REJECT, Stage.SCREEN, 1.0)
    assert "on the search tasks" in gate.reason


def test_a_regression_on_a_protected_group_rejects_although_the_mean_is_better() -> None:
    gate = new(protected={"tag safety": ("safe", "safer")})
    for difference, task in [(1.0, "a"), (1.0, "a"), (-0.5, "safe"), (1.0, "a"), (1.0, "a")]:
        gate.observe(difference, task=task)
        assert gate.decision is None
    gate.observe(-0.5, task="safer")
    assert gate.decision is Decision.REJECT
    assert "protected tag safety" in gate.reason


def test_a_promotion_waits_until_each_protected_group_was_seen_and_is_not_behind() -> None:
    gate = new(protected={"task safe": ("safe",)})
    for _ in range(7):
        gate.observe(1.0, task="a")
    assert (gate.stage, gate.decision) == (Stage.GUARD, None)
    for difference in (-1.0, 0.3, 0.1 + 0.2):
        gate.observe(difference, task="safe")
        assert gate.unguarded == ("task safe",)
    gate.observe(0.4, task="safe")  # not behind, rounding or not
    assert gate.decision is Decision.PROMOTE
    assert (gate.pairs, gate.all_pairs, gate.effect) == (7, 11, 1.0)  # what the guard saw is no evidence


def test_a_protected_group_that_loses_often_enough_rejects_in_spite_of_wins() -> None:
    gate = new(protected={"task safe": ("safe",)})
    for _ in range(7):
        gate.observe(1.0, task="a")
    gate.observe(1.0, task="safe")
    gate.observe(-1.0, task="safe")
    assert gate.decision is Decision.PROMOTE  # even is not behind
    gate = new(protected={"task safe": ("safe",)})
    gate.observe(1.0, task="safe")
    lost = 0
    while gate.decision is None:
        gate.observe(-1.0 if lost % 4 != 3 else 1.0, task="safe")
        lost += 1
    assert gate.decision is Decision.REJECT
    assert lost > 3


@pytest.mark.parametrize(
    ("what", "ratio", "expected"), [("cost", 1.5, "cost"), ("latency", 1.5, "latency"), ("cost", 1.1, ""), ("cost", 0.0, "not known")]
)
def test_a_better_candidate_that_takes_too_much_is_refused(what: str, ratio: float, expected: str) -> None:
    gate = new(**{f"max_{what}_ratio": 1.2})
    price = Price(ratio, 1.0) if ratio else Price(0.0, 0.0)
    while gate.decision is None:
        gate.observe(1.0, task="t", **{what: price})
    assert gate.decision is (Decision.REJECT if expected else Decision.PROMOTE)
    assert expected in gate.reason


@pytest.mark.parametrize("difference", [math.nan, math.inf, 1.0001, -2.0])
def test_what_is_not_a_paired_difference_is_an_error(difference: float) -> None:
    with pytest.raises(ValueError, match="paired difference"):
        new().observe(difference, task="t")


def test_a_rounding_error_is_a_tie() -> None:
    gate = new(protected={"task t": ("t",)})
    for _ in range(4):
        gate.observe(0.3 - (0.1 + 0.2), task="t")
    assert (gate.losses, gate.decision, gate.unguarded) == (0, None, ())


def test_a_decision_is_final() -> None:
    gate = judge(lambda: 1.0)
    reason = gate.reason
    gate.give_up("too late")
    assert (gate.decision, gate.reason) == (Decision.PROMOTE, reason)
    with pytest.raises(ValueError, match="decided"):
        gate.observe(1.0, task="t")


def test_the_reason_is_plain_words_with_numbers() -> None:
    gate = new()
    for difference in (1.0, -1.0, 0.0):
        gate.observe(difference, task="t")
    gate.give_up("the budget of 3 pairs is used up")
    assert gate.reason.startswith(
        "The budget of 3 pairs is used up: evidence 1.6 of 33 needed. 1 won, 1 lost, 1 alike of 3 pairs; effect +0.00"
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1, 1), max_size=60), st.floats(0.01, 0.99), st.booleans())
def test_whatever_it_sees_it_decides_once_with_evidence_and_an_interval_around_the_effect(
    seen: list[float], min_effect: float, screened: bool
) -> None:
    gate = new(min_effect=min_effect, screened=screened)
    for difference in seen:
        if gate.decision is None:
            gate.observe(difference, task="t")
    gate.give_up("the end")
    low, high = gate.interval
    assert low - 1e-5 <= gate.effect <= high + 1e-5
    if gate.decision is Decision.PROMOTE:
        assert gate.evidence >= 1 / gate.terms.share


def test_the_interval_covers_the_effect_as_often_as_stated_at_the_time_the_gate_stopped() -> None:
    streams, effect = 150, 0.3
    missed = 0
    for seed in range(streams):
        low, high = judge(binary(random.Random(seed), 0.4, effect)).interval
        missed += not low <= effect <= high
    assert missed <= streams * INTERVAL_LEVEL + 4 * math.sqrt(streams * INTERVAL_LEVEL)


def test_the_example_in_the_documentation_is_true() -> None:
    assert doctest.testmod(gate_module).failed == 0
    assert doctest.testmod(gate_module).attempted > 0
