"""The statistic of canaries: false roll-backs and false survivals stay within α on streams as live traffic makes them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reef.evaluation.live import WAITING, LiveTerms, LiveTest, Scored, weigh
from reef.types import Decision

ALPHA = 0.05
TERMS = LiveTerms(alpha=ALPHA, min_effect=0.1, min_reports=20)
STREAMS = 300
MOST = ALPHA * STREAMS + 3 * (STREAMS * ALPHA * (1 - ALPHA)) ** 0.5
"""False ends in so many streams that a test which keeps to α has more of them once in 700 runs; the seeds are fixed, so it is run once."""

Draw = Callable[[random.Random, float], float]
"""A score at a time of the stream, from 0 to 1."""


def binary(chance: float, *, drift: float = 0.0) -> Draw:
    return lambda rng, at: float(rng.random() < chance + drift * at)


def graded(rng: random.Random, _at: float) -> float:
    return rng.choice((0.0, 0.25, 0.5, 1.0))


def stream(seed: int, *, head: Draw, candidate: Draw, share: float, length: int = 500) -> Iterator[Scored]:
    rng = random.Random(seed)
    for place in range(length):
        on_candidate = rng.random() < share
        yield Scored(on_candidate, (candidate if on_candidate else head)(rng, place / length))


def ends(decision: Decision, *, head: Draw, candidate: Draw, share: float) -> int:
    made = (weigh(TERMS, stream(seed, head=head, candidate=candidate, share=share)).decision for seed in range(STREAMS))
    return sum(end is decision for end in made)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("alike", [binary(0.9), graded, binary(0.2, drift=0.7)], ids=["binary", "graded", "getting better"])
def test_a_candidate_that_is_as_good_is_hardly_ever_rolled_back(alike: Draw, share: float) -> None:
    assert ends(Decision.REJECT, head=alike, candidate=alike, share=share) <= MOST


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize(("head", "candidate"), [(binary(0.9), binary(0.8)), (binary(0.2, drift=0.7), binary(0.1, drift=0.7))])
def test_a_candidate_that_is_worse_by_the_smallest_effect_hardly_ever_survives(head: Draw, candidate: Draw, share: float) -> None:
    assert ends(Decision.PROMOTE, head=head, candidate=candidate, share=share) <= MOST


def test_to_pair_by_number_alone_would_take_a_better_week_for_a_worse_candidate() -> None:
    """What the docstring warns of: with a tenth of the traffic the candidate's n-th report is much later than the head's."""
    better_by_the_day = binary(0.2, drift=0.7)

    def by_number(seed: int) -> float:
        sides: dict[bool, list[float]] = {False: [], True: []}
        for report in stream(seed, head=better_by_the_day, candidate=better_by_the_day, share=0.1):
            sides[report.on_candidate].append(report.score)
        differences = [mine - other for mine, other in zip(sides[True], sides[False], strict=False)]
        return sum(differences) / len(differences)

    ours = [weigh(TERMS, stream(seed, head=better_by_the_day, candidate=better_by_the_day, share=0.1)).effect for seed in range(200)]
    assert sum(map(by_number, range(200))) / 200 > 0.25
    assert abs(sum(ours) / 200) < 0.05


def test_harm_ends_at_once_and_a_good_candidate_waits_for_its_reports() -> None:
    harm = weigh(TERMS, stream(1, head=binary(1.0), candidate=binary(0.0), share=0.1))
    assert harm.decision is Decision.REJECT
    assert harm.reports["candidate"] < TERMS.min_reports
    assert "Worse than the head" in harm.verdict(seconds=1.0).reason
    good = LiveTest(TERMS)
    for _ in range(TERMS.min_reports - 1):
        for side in (False, True):
            good.observe(Scored(side, float(side)))
        assert good.decision is None
    good.observe(Scored(True, 1.0))
    verdict = good.verdict(seconds=1.0)
    assert verdict.decision is Decision.PROMOTE
    assert "and better" in verdict.reason
    assert (verdict.effect, verdict.pairs, verdict.wins) == (1.0, TERMS.min_reports - 1, TERMS.min_reports - 1)


def test_what_comes_after_the_end_changes_nothing() -> None:
    reports = list(stream(1, head=binary(1.0), candidate=binary(0.0), share=0.5))
    test, ended = LiveTest(TERMS), 0
    for place, report in enumerate(reports):
        test.observe(report)
        if test.decision is not None:
            ended = place + 1
            break
    assert weigh(TERMS, reports).verdict(seconds=0) == weigh(TERMS, reports[:ended]).verdict(seconds=0)


def test_an_undecided_end_says_what_was_missing() -> None:
    verdict = weigh(TERMS, [Scored(True, 1.0)]).verdict(seconds=0.0, otherwise="undecided after 14 days")
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.reason.startswith("Undecided after 14 days: evidence 1 for not worse and 1 for worse, of 20 needed, 1 of 20 sessions")
    with pytest.raises(ValueError, match="number"):
        LiveTest(TERMS).observe(Scored(True, float("nan")))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.builds(Scored, st.booleans(), st.floats(-0.5, 1.5)), max_size=200))
def test_who_is_paired_hangs_on_the_order_of_arrival_alone(reports: list[Scored]) -> None:
    never = LiveTerms(alpha=1e-12, min_effect=0.1, min_reports=10_000)
    test = weigh(never, reports)
    assert weigh(never, [Scored(report.on_candidate, 0.0) for report in reports]).pairs == test.pairs
    assert test.reports == {"head": sum(not r.on_candidate for r in reports), "candidate": sum(r.on_candidate for r in reports)}
    assert test.pairs <= min(test.reports.values())
    assert all(-1.0 <= difference <= 1.0 for difference in test.differences)


def test_the_partner_is_the_newest_and_old_ones_are_passed_over() -> None:
    test = LiveTest(TERMS)
    for place in range(WAITING + 5):
        test.observe(Scored(False, place / 100))
    for _ in range(WAITING + 5):
        test.observe(Scored(True, 1.0))
    assert test.pairs == WAITING
    assert test.differences[0] == pytest.approx(1 - (WAITING + 4) / 100)
