"""The estimate from the head's own draws is right on average, whatever was foretold, and the gate keeps its promise on it."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.evaluation.off_policy import Draw, bound, difference, judge
from reef.serving.choosing import FEATURES, Arm, Choice
from reef.types import Decision

WEIGHT = st.floats(-1, 1)
ARMS = ("a/x", "b/y", "c/z")


def choice(*weights: tuple[float, ...], explore: float = 0.2) -> Choice:
    arms = {name: Arm(weights=w + (0.0,) * (len(FEATURES) - len(w))) for name, w in zip(ARMS, weights, strict=False)}
    return Choice(arms=arms, explore=explore)


CHOICES = st.builds(
    lambda weights, explore: choice(*weights, explore=explore),
    st.lists(st.tuples(WEIGHT, WEIGHT), min_size=3, max_size=3),
    st.floats(0.05, 1.0),
)


@given(CHOICES, CHOICES, st.lists(st.floats(0, 1), min_size=3, max_size=3), st.floats(0, 1))
def test_on_average_it_is_the_difference_of_what_both_earn(candidate: Choice, head: Choice, worth: list[float], length: float) -> None:
    features = (1.0, length, 0.0, 0.0, 0.0)
    truth = dict(zip(ARMS, worth, strict=True))
    chances = head.chances(features)
    found = [difference(Draw("r", features, arm, truth[arm], 0, 0), candidate=candidate, head=head) for arm in ARMS]
    mean = sum(chance * one for chance, one in zip(chances.values(), found, strict=True))
    wanted = sum((candidate.chances(features)[arm] - chances[arm]) * truth[arm] for arm in ARMS)
    assert mean == pytest.approx(wanted, abs=1e-9)
    assert max(map(abs, found)) <= bound(candidate, head) + 1e-9


def test_the_chances_are_those_with_which_sessions_are_drawn() -> None:
    one = choice((0.1,), (0.5,), (0.2,), explore=0.3)
    body = {"messages": [{"role": "user", "content": "hi"}]}
    counted = {arm: 0 for arm in ARMS}
    for number in range(20_000):
        counted[one.pick(f"s-{number}", body)] += 1
    for arm, chance in one.chances((1.0, 0.1, 0.0, 0.0, 0.0)).items():
        assert counted[arm] / 20_000 == pytest.approx(chance, abs=0.015)


def drawn(head: Choice, dice: random.Random, *, number: int, good: dict[str, float]) -> list[Draw]:
    features = (1.0, 0.3, 0.0, 0.0, 0.0)
    names, weights = zip(*head.chances(features).items(), strict=True)
    arms = [dice.choices(names, weights)[0] for _ in range(number)]
    return [Draw("r", features, arm, float(dice.random() < good[arm]), 0, 0) for arm in arms]


def test_a_useless_candidate_is_released_as_seldom_as_promised() -> None:
    head, candidate = choice((0.5,), (0.4,), explore=0.5), choice((0.4,), (0.5,), explore=0.2)
    dice = random.Random(5)
    released = 0
    for _ in range(200):
        draws = drawn(head, dice, number=100, good={"a/x": 0.5, "b/y": 0.5})
        verdict = judge(draws, candidate=candidate, head=head, alpha=0.3, spent=0, min_effect=0.05)
        released += verdict.decision is Decision.PROMOTE
    assert released / 200 <= 0.3 * 6 / 3.14159**2


def test_a_better_candidate_is_found_and_a_worse_one_is_not() -> None:
    head, candidate = choice((0.9,), (0.1,), explore=0.5), choice((0.1,), (0.9,), explore=0.2)
    dice = random.Random(7)
    for good, decision in itertools.product((True,), (Decision.PROMOTE,)):
        draws = drawn(head, dice, number=300, good={"a/x": 0.1, "b/y": 0.9})
        verdict = judge(draws, candidate=candidate, head=head, alpha=0.05, spent=0, min_effect=0.05)
        assert (good, verdict.decision) == (True, decision)
        assert verdict.low <= 0.52 <= verdict.high, "0.65 of the sessions move, and gain 0.8 each"
    draws = drawn(head, dice, number=300, good={"a/x": 0.9, "b/y": 0.1})
    assert judge(draws, candidate=candidate, head=head, alpha=0.05, spent=0, min_effect=0.05).decision is not Decision.PROMOTE


def test_a_copy_with_other_weights_chooses_by_those() -> None:
    one = choice((0.9,), (0.1,))
    features = (1.0, 0.0, 0.0, 0.0, 0.0)
    assert one.best(features) == "a/x"
    assert one.model_copy(update={"arms": choice((0.1,), (0.9,)).arms}).best(features) == "b/y"
