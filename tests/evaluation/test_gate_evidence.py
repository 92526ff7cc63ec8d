"""The bets, the interval and the sharing out of error: what holds for every input, and the cases the arithmetic could break on."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reef.evaluation.eprocess import GRID, Wealth, interval
from reef.evaluation.spending import POWER, error_share, fewest_pairs, smallest_effect

differences = st.lists(st.floats(-1, 1), max_size=40)


@settings(max_examples=60, deadline=None)
@given(differences, st.floats(0.01, 0.99))
def test_wealth_is_never_negative_and_always_finite(observed: list[float], min_effect: float) -> None:
    for wealth in (Wealth(target=20.0), Wealth(target=10.0, largest_loss=1 - min_effect)):
        for value in observed:
            assert 0.0 <= wealth.observe(max(value, min_effect - 1)) < math.inf


@settings(max_examples=200, deadline=None)
@given(differences, st.floats(0.01, 0.99))
def test_every_bet_is_fair(observed: list[float], loss: float) -> None:
    """The stake comes before the observation, and is one that a mean of 0 or less cannot win from: at least 0, at most what can be lost."""
    wealth = Wealth(target=20.0, largest_loss=loss)
    for value in observed:
        assert 0.0 <= wealth.stake < 1 / loss
        before, stake = wealth.value, wealth.stake
        wealth.observe(max(value, -loss))
        assert wealth.value == before * (1.0 + stake * max(value, -loss))


def test_no_more_is_staked_than_a_win_needs() -> None:
    wealth = Wealth(target=20.0)
    while not wealth.reached:
        wealth.observe(1.0)
    assert 20.0 <= wealth.value < 20.0 * (1 + 1e-9)


def test_wins_of_many_sizes_do_not_creep_up_on_the_bound() -> None:
    generator = random.Random(1)
    wealth, pairs = Wealth(target=20.0), 0
    while not wealth.reached:
        wealth.observe(generator.uniform(0.05, 0.6))
        pairs += 1
    assert pairs < 20


def test_ties_change_nothing() -> None:
    with_ties, without = Wealth(target=100.0), Wealth(target=100.0)
    for value in (1.0, -1.0, 1.0, 1.0):
        without.observe(value)
        for tied in (0.0, value, 0.0):
            with_ties.observe(tied)
    assert with_ties.value == without.value


@pytest.mark.parametrize("value", [1.0, -1.0, 1e-300, -1e-300])
def test_evidence_stays_a_number_however_long_it_goes_on(value: float) -> None:
    wealth = Wealth(target=1e12)
    for _ in range(5000):
        wealth.observe(value)
    assert 0.0 <= wealth.value < math.inf
    assert wealth.reached == (value == 1.0)


@settings(max_examples=40, deadline=None)
@given(differences)
def test_the_interval_holds_the_mean_and_lies_in_bounds(observed: list[float]) -> None:
    low, high = interval(observed)
    mean = sum(observed) / len(observed) if observed else 0.0
    assert -1 <= low <= mean + 1e-6
    assert mean - 1e-6 <= high <= 1


@pytest.mark.parametrize("value", [1.0, 0.0, -1.0, 0.25])
def test_the_interval_of_very_many_equal_pairs_is_narrow(value: float) -> None:
    low, high = interval([value] * 20_000)
    assert value - 0.001 <= low <= value <= high <= value + 0.001


def test_the_interval_does_not_hang_on_the_order() -> None:
    observed = [random.Random(3).uniform(-1, 1) for _ in range(50)]
    assert interval(observed) == interval(sorted(observed))


def test_the_error_spent_over_a_chains_life_stays_below_alpha() -> None:
    shares = [error_share(0.05, spent=spent) for spent in range(100_000)]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) < 0.05


def test_the_fewest_pairs_grow_slowly_with_the_age_of_a_chain() -> None:
    assert [fewest_pairs(error_share(0.05, spent=k - 1)) for k in (1, 2, 10, 50)] == [7, 10, 15, 20]


def test_the_smallest_effect_is_one_that_the_gate_finds_as_often_as_stated() -> None:
    alpha, pairs, streams = error_share(0.05, spent=0), 80, 600
    effect = smallest_effect(alpha, pairs=pairs, unequal=0.5, size=1.0)
    assert effect is not None
    won = 0.25 + effect / 2  # of all pairs; half of them are alike
    generator = random.Random(5)
    promoted = 0
    for _ in range(streams):
        wealth = Wealth(target=1 / alpha)
        for _ in range(pairs):
            draw = generator.random()
            wealth.observe(1.0 if draw < won else -1.0 if draw < 0.5 else 0.0)
        promoted += wealth.reached
    assert abs(promoted / streams - POWER) < 0.07


def test_a_larger_budget_sees_smaller_effects_and_a_tiny_one_sees_none() -> None:
    alpha = error_share(0.05, spent=0)
    seen = [smallest_effect(alpha, pairs=pairs, unequal=0.5, size=1.0) for pairs in (30, 60, 400, 1999, 2001, 9000)]
    assert None not in seen
    assert seen == sorted(seen, reverse=True)  # type: ignore[type-var]
    assert smallest_effect(alpha, pairs=10, unequal=0.5, size=1.0) is None
    assert smallest_effect(alpha, pairs=0, unequal=0.5, size=1.0) is None


def test_the_stakes_are_between_an_eighth_and_one() -> None:
    assert min(GRID) == 0.125
    assert max(GRID) < 1
