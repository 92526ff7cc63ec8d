"""A verdict comes back from the database as it was, and can be reached again from what is stored."""

from __future__ import annotations

import pytest
from chains import Bench

from reef.evaluation.verdicts import first_difference, no_change, recompute
from reef.types import CandidateState, Decision
from tests.support.verdicts import simulated


@pytest.mark.parametrize(("seed", "effect", "screened"), [(1, 0.5, True), (2, 0.4, False), (3, -0.3, True), (4, 0.03, False)])
def test_a_stored_verdict_is_equal_and_is_reached_again_to_the_last_bit(bench: Bench, seed: int, effect: float, screened: bool) -> None:
    verdict = simulated(seed, effect=effect, screened=screened)
    candidate = bench.candidate("a change")
    bench.controller.settle(candidate, verdict, expected_head=1)
    stored = bench.controller.verdict(candidate.id)
    assert stored is not None
    assert stored == verdict
    assert first_difference(stored, recompute(stored)) == ""


def test_the_head_s_trials_are_remembered_newest_first_and_those_of_others_are_not(bench: Bench) -> None:
    for seed in (1, 2):
        bench.controller.settle(bench.candidate(f"change {seed}"), simulated(seed, effect=-0.4), expected_head=1)
    found = bench.controller.trials_of("default", "head-bytes")
    assert {(trial.side, trial.content_id) for trial in found} == {("head", "head-bytes")}
    newest = simulated(2, effect=-0.4).trials
    assert found[0] == next(trial for trial in reversed(newest) if trial.side == "head")
    assert bench.controller.trials_of("default", "head-bytes", limit=3) == found[:3]
    assert bench.controller.trials_of("default", "other bytes") == []
    assert bench.controller.trials_of("another", "head-bytes") == []


def test_no_change_ends_a_candidate_and_spends_no_error(bench: Bench) -> None:
    candidate = bench.candidate("a change")
    bench.controller.settle(candidate, no_change(), expected_head=1)
    stored = bench.controller.verdict(candidate.id)
    assert stored is not None
    assert stored.decision is Decision.NO_CHANGE
    assert first_difference(stored, recompute(stored)) == ""
    assert bench.controller.candidate(candidate.id).state is CandidateState.INCONCLUSIVE
    assert bench.controller.spent("default") == 0
