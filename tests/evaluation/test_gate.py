import doctest
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reef.evaluation import gate as gate_module
from reef.evaluation.gate import REJECT_LEVEL, Gate, Wealth, error_share, fewest_pairs, interval
from reef.types import Decision


def judge(draw: Callable[[], float], *, alpha: float = 0.05, min_effect: float = 0.2, budget: int = 60) -> Gate:
    gate = Gate(alpha=alpha, min_effect=min_effect)
    while gate.decision is None and gate.pairs < budget:
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


@pytest.mark.parametrize("scores", [binary, graded, tied, skewed])
def test_a_candidate_no_better_than_the_head_is_promoted_no_more_often_than_stated(scores: Callable[..., Callable[[], float]]) -> None:
    streams, alpha = 400, 0.05
    promoted = sum(judge(scores(random.Random(seed), 0.5, 0.0), alpha=alpha).decision is Decision.PROMOTE for seed in range(streams))
    # the bound on the mean holds exactly; four standard errors above it would be a broken gate and not bad luck
    assert promoted <= streams * alpha + 4 * math.sqrt(streams * alpha * (1 - alpha))


def test_a_candidate_with_the_smallest_wanted_effect_is_rejected_no_more_often_than_stated() -> None:
    streams = 300
    rejected = sum(judge(binary(random.Random(seed), 0.4, 0.2)).decision is Decision.REJECT for seed in range(streams))
    assert rejected <= streams * REJECT_LEVEL + 4 * math.sqrt(streams * REJECT_LEVEL)


def test_a_large_effect_is_promoted_soon() -> None:
    for k, most in ((1, 9), (2, 11), (10, 16)):
        gate = judge(lambda: 1.0, alpha=error_share(0.05, spent=k - 1))
        assert gate.decision is Decision.PROMOTE
        assert gate.pairs == fewest_pairs(gate.alpha) <= most
    gates = [judge(binary(random.Random(seed), 0.3, 0.5)) for seed in range(100)]
    assert sum(gate.decision is Decision.PROMOTE for gate in gates) >= 90
    assert sum(gate.pairs for gate in gates) / len(gates) < 25


def test_harmful_and_useless_candidates_are_rejected_before_the_budget_ends() -> None:
    assert judge(lambda: -1.0).pairs <= 6
    useless = judge(lambda: 0.0)
    assert useless.decision is Decision.REJECT
    assert useless.pairs <= 20


def test_the_error_spent_over_a_chains_life_stays_below_alpha() -> None:
    shares = [error_share(0.05, spent=spent) for spent in range(100_000)]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) < 0.05


def test_a_regression_on_a_protected_task_rejects_although_the_mean_is_better() -> None:
    gate = Gate(alpha=0.05, min_effect=0.1, protected=frozenset({"safe"}))
    for difference, task in [(1.0, "a"), (1.0, "a"), (-0.5, "safe"), (1.0, "a"), (1.0, "a")]:
        assert gate.observe(difference, task=task) is None
    assert gate.observe(-0.5, task="safe") is Decision.REJECT
    assert "protected task safe" in gate.reason


def test_a_promotion_waits_until_each_protected_task_was_seen_and_is_not_behind() -> None:
    gate = Gate(alpha=0.05, min_effect=0.1, protected=frozenset({"safe"}))
    for _ in range(12):
        assert gate.observe(1.0, task="a") is None
    gate.observe(-1.0, task="safe")
    gate.observe(0.0, task="safe")
    assert gate.unguarded == ("safe",)
    assert gate.observe(1.0, task="safe") is Decision.PROMOTE


def test_evidence_that_was_reached_once_is_not_lost_while_waiting_for_a_guard() -> None:
    gate = Gate(alpha=0.05, min_effect=0.1, protected=frozenset({"safe"}))
    for difference in [1.0] * 8 + [-1.0] * 2:
        assert gate.observe(difference, task="a") is None
    gate.observe(0.0, task="safe")
    assert gate.observe(0.0, task="safe") is Decision.PROMOTE


@pytest.mark.parametrize("difference", [math.nan, math.inf, 1.0001, -2.0])
def test_what_is_not_a_paired_difference_is_an_error(difference: float) -> None:
    with pytest.raises(ValueError, match="paired difference"):
        Gate(alpha=0.05, min_effect=0.1).observe(difference, task="t")


def test_a_decision_is_final() -> None:
    gate = judge(lambda: 1.0)
    reason = gate.reason
    gate.give_up("too late")
    assert (gate.decision, gate.reason) == (Decision.PROMOTE, reason)
    with pytest.raises(ValueError, match="decided"):
        gate.observe(1.0, task="t")


def test_the_reason_is_plain_words_with_numbers() -> None:
    gate = Gate(alpha=0.05, min_effect=0.1)
    for difference in (1.0, -1.0, 0.0):
        gate.observe(difference, task="t")
    gate.give_up("the budget of 3 pairs is used up")
    assert gate.reason.startswith(
        "The budget of 3 pairs is used up: evidence 1.5 of 20 needed. 1 won, 1 lost, 1 alike of 3 pairs; effect +0.00"
    )


differences = st.lists(st.floats(-1, 1), max_size=40)


@settings(max_examples=40, deadline=None)
@given(differences)
def test_the_interval_holds_the_mean_and_lies_in_bounds(observed: list[float]) -> None:
    low, high = interval(observed)
    mean = sum(observed) / len(observed) if observed else 0.0
    assert -1 <= low <= mean + 1e-6
    assert mean - 1e-6 <= high <= 1


@settings(max_examples=60, deadline=None)
@given(differences, st.floats(0.01, 0.99))
def test_wealth_is_never_negative_and_always_finite(observed: list[float], min_effect: float) -> None:
    for wealth in (Wealth(), Wealth(largest_loss=1 - min_effect)):
        for value in observed:
            assert 0.0 <= wealth.observe(max(value, min_effect - 1)) < math.inf


def test_the_interval_covers_the_effect_as_often_as_stated_at_the_time_the_gate_stopped() -> None:
    streams, effect = 150, 0.3
    missed = 0
    for seed in range(streams):
        low, high = judge(binary(random.Random(seed), 0.4, effect)).interval
        missed += not low <= effect <= high
    assert missed <= streams * 0.05 + 4 * math.sqrt(streams * 0.05)


def test_evidence_stays_finite_however_long_a_candidate_wins() -> None:
    wealth = Wealth()
    for _ in range(3000):
        wealth.observe(1.0)
    assert 1e290 < wealth.value < math.inf


def test_the_example_in_the_documentation_is_true() -> None:
    assert doctest.testmod(gate_module).failed == 0
    assert doctest.testmod(gate_module).attempted > 0
