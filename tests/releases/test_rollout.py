"""Canaries and shadows: how they begin, who gets them, what counts for them, and how they end."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from chains import Bench, verdict

from reef.config import ReleaseConfig
from reef.errors import Conflict
from reef.evaluation.live import Scored
from reef.experience.committer import InThread
from reef.experience.database import write
from reef.experience.reports import ReportDraft
from reef.experience.store import ExperienceStore
from reef.experience.writer import Writer
from reef.learner.canary import CanaryJudge
from reef.releases import pins, rollout
from reef.releases.canary_end import conclude
from reef.releases.controller import Controller
from reef.releases.live_reports import scored, standing
from reef.releases.rollout import Mode, Plan
from reef.types import Candidate, CandidateState, Component, Decision, End, Origin, Record

PLAN = Plan(mode=Mode.CANARY, share=0.5, min_reports=20, min_effect=0.1)
_numbers = itertools.count()


def on_canary(bench: Bench, text: str = "better", *, plan: Plan = PLAN) -> Candidate:
    """A candidate that the gate promoted, where such are tried first."""
    candidate = bench.candidate(text)
    controller = Controller(bench.engine, bench.artifacts, plan=plan)
    assert controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=candidate.base_step) is None
    return controller.candidate(candidate.id)


def sessions(
    bench: Bench, *told: tuple[str | None, float | None], release: int = 1, origin: Origin = Origin.USER, at: float = 0.0
) -> list[str]:
    """Sessions of one exchange each, on a candidate or the head, and what was reported on them."""

    async def write_all() -> list[str]:
        writer = Writer(bench.engine, storing=InThread(bench.engine))
        writer.start()
        names = []
        for candidate, score in told:
            number = next(_numbers)
            name = f"s-{number}"
            record = Record(
                id=f"rec-{number}", scenario="default", session=name, release=None if candidate else release, candidate=candidate,
                origin=origin, dialect="chat", upstream="u", model="m", end=End.COMPLETE, status=200, streamed=False,
                request={"messages": [{"role": "user", "content": f"do {number}"}]}, response=None, usage={},
                started_at=at or time.time(), first_byte_ms=None, duration_ms=1.0,
            )  # fmt: skip
            await writer.record(record)
            if score is not None:
                await writer.report(ReportDraft(scenario="default", session=name, score=score))
            names.append(name)
        await writer.aclose()
        return names

    return asyncio.run(write_all())


def judge(bench: Bench, tmp_path: Path) -> CanaryJudge:
    return CanaryJudge(bench.controller, folder=tmp_path, stop=threading.Event())


def state(bench: Bench, candidate: Candidate) -> CandidateState:
    return bench.controller.candidate(candidate.id).state


def test_what_the_gate_promotes_goes_on_canary_where_that_is_configured(bench: Bench) -> None:
    candidate = on_canary(bench)
    assert candidate.state is CandidateState.CANARY
    assert "on canary for 0.5 of the installations" in candidate.reason
    assert bench.controller.head("default").step == 1
    assert bench.controller.verdict(candidate.id) == verdict(Decision.PROMOTE)
    under_way = rollout.canary(bench.controller, "default")
    assert under_way is not None
    assert (under_way.candidate, under_way.mode, under_way.plan.alpha) == (candidate, Mode.CANARY, 0.03)
    assert rollout.canary(bench.controller, "other") is None
    assert "abandoned" not in " ".join(bench.controller.repair())
    assert state(bench, candidate) is CandidateState.CANARY
    assert bench.controller.verify("default") == []


def test_only_what_was_promoted_does_and_only_one_at_a_time(bench: Bench) -> None:
    controller = Controller(bench.engine, bench.artifacts, plan=PLAN)
    refused = bench.candidate("worse")
    controller.settle(refused, verdict(Decision.REJECT), expected_head=1)
    assert state(bench, refused) is CandidateState.REJECTED
    first, second = on_canary(bench, "one"), on_canary(bench, "two")
    assert (first.state, second.state) == (CandidateState.CANARY, CandidateState.HELD)
    assert first.id in second.reason
    assert rollout.of(bench.controller, second.id) is None


def test_the_short_forms_of_the_configuration() -> None:
    for told, share in (("canary", 0.1), ({"canary": {"share": 0.2}}, 0.2), ({"canary": None}, 0.1), ({"mode": "canary"}, 0.1)):
        config = ReleaseConfig.model_validate({"rollout": told})
        plan = Plan.configured(config, min_effect=0.2, alpha=0.01)
        assert (plan.mode, plan.share, plan.min_effect, plan.alpha) == (Mode.CANARY, share, 0.2, 0.01)
    assert Plan.configured(ReleaseConfig(), min_effect=0.1, alpha=0.05).mode is Mode.IMMEDIATE
    assert ReleaseConfig.model_validate({"rollout": {"mode": "immediate", "canary": {"share": 0.3}}}).rollout.mode == "immediate"
    with pytest.raises(ValueError, match="mode"):
        ReleaseConfig.model_validate({"rollout": "sometimes"})
    with pytest.raises(ValueError, match="share"):
        ReleaseConfig.model_validate({"rollout": {"canary": {"share": 1.0}}})


def test_the_draw_is_stable_follows_the_share_and_is_another_for_each_candidate(bench: Bench) -> None:
    candidate, other = bench.candidate("one"), bench.candidate("two")
    clients = [f"client-{number}" for number in range(4000)]
    got = {who for who in clients if rollout.drawn(candidate, who, share=0.1)}
    assert got == {who for who in clients if rollout.drawn(candidate, who, share=0.1)}
    assert got <= {who for who in clients if rollout.drawn(candidate, who, share=0.2)}, "a larger share takes nobody's away"
    assert 300 < len(got) < 500
    assert 10 < len(got & {who for who in clients if rollout.drawn(other, who, share=0.1)}) < 90


def test_an_installation_that_is_pinned_or_says_no_name_gets_the_head(bench: Bench) -> None:
    candidate = on_canary(bench)
    mine = next(who for who in map("client-{}".format, range(50)) if rollout.drawn(candidate, who, share=0.5))
    assert rollout.offered(bench.controller, "default", client=mine) == candidate
    assert rollout.offered(bench.controller, "default", client="") is None
    pins.pin(bench.controller, "default", 1, client=mine)
    assert rollout.offered(bench.controller, "default", client=mine) is None
    pins.unpin(bench.controller, "default", client=mine)
    pins.pin(bench.controller, "default", 1)
    assert rollout.offered(bench.controller, "default", client=mine) is None


def test_what_counts_is_the_first_score_of_each_session_of_a_user_since_it_began(bench: Bench) -> None:
    sessions(bench, (None, 0.1))
    candidate = on_canary(bench)
    canary = rollout.of(bench.controller, candidate.id)
    assert canary is not None
    names = sessions(bench, (None, 0.25), (candidate.id, 0.75), (None, None), ("c-0123456789ab", 1.0))
    sessions(bench, (None, 0.3), release=7)
    sessions(bench, (None, 0.4), (candidate.id, 0.5), origin=Origin.TRIAL)
    sessions(bench, (None, 0.45), at=canary.started_at - 60)

    async def again() -> None:
        writer = Writer(bench.engine, storing=InThread(bench.engine))
        writer.start()
        await writer.report(ReportDraft(scenario="default", session=names[1], score=0.0))
        await writer.report(ReportDraft(scenario="default", session=names[2], feedback="no score"))
        await writer.aclose()

    asyncio.run(again())
    assert scored(bench.engine, canary) == [Scored(False, 0.25), Scored(True, 0.75)]
    kept = ExperienceStore(bench.engine).records("default", candidate=candidate.id, origin=Origin.USER)
    assert [(record.session, record.release, record.candidate) for record in kept] == [(names[1], None, candidate.id)]


def test_a_canary_that_does_as_well_is_released_like_any_other(bench: Bench, tmp_path: Path) -> None:
    candidate = on_canary(bench)
    watch = judge(bench, tmp_path)
    sessions(bench, *[(side, 1.0) for _ in range(19) for side in (None, candidate.id)])
    assert [found.decision for found in watch.look()] == [Decision.INCONCLUSIVE]
    assert state(bench, candidate) is CandidateState.CANARY
    sessions(bench, *[(side, 1.0) for _ in range(60) for side in (None, candidate.id)])
    judge(bench, tmp_path).look()  # another process than the one before: nothing was kept
    head = bench.controller.head("default")
    assert (head.step, head.candidate, head.operation) == (2, candidate.id, "train")
    assert state(bench, candidate) is CandidateState.RELEASED
    ended = rollout.of(bench.controller, candidate.id)
    assert ended is not None
    assert ended.finding is not None
    assert ended.finding["decision"] == "promote"
    assert ended.finding["terms"]["reports"]["candidate"] >= 20
    assert watch.look() == []
    assert bench.controller.verify("default") == []


def test_a_canary_that_does_harm_is_rolled_back_at_once_with_its_evidence(bench: Bench, tmp_path: Path) -> None:
    candidate = on_canary(bench)
    sessions(bench, *[told for _ in range(9) for told in ((None, 1.0), (candidate.id, 0.0))])
    judge(bench, tmp_path).look()
    now = bench.controller.candidate(candidate.id)
    assert now.state is CandidateState.REJECTED
    assert "Worse than the head" in now.reason
    assert bench.controller.head("default").step == 1
    assert rollout.canary(bench.controller, "default") is None
    assert rollout.offered(bench.controller, "default", client="client-1") is None
    with pytest.raises(Conflict):
        conclude(bench.controller, candidate.id, verdict(Decision.PROMOTE))
    assert bench.controller.head("default").step == 1


def test_a_head_that_moves_makes_it_inconclusive(bench: Bench, tmp_path: Path) -> None:
    candidate = on_canary(bench)
    bench.promote("meanwhile")
    judge(bench, tmp_path).look()
    now = bench.controller.candidate(candidate.id)
    assert now.state is CandidateState.INCONCLUSIVE
    assert "Release 2 serves by now" in now.reason


def test_a_head_that_moves_at_the_last_moment_is_not_overwritten(bench: Bench, tmp_path: Path) -> None:
    candidate = on_canary(bench)
    sessions(bench, *[(side, 1.0) for _ in range(80) for side in (None, candidate.id)])
    canary = rollout.of(bench.controller, candidate.id)
    assert canary is not None
    assert standing(bench.engine, canary).decided
    watch = judge(bench, tmp_path)
    bench.promote("meanwhile")
    watch._conclude(canary, standing(bench.engine, canary).verdict)
    assert bench.controller.head("default").step == 2
    assert state(bench, candidate) is CandidateState.INCONCLUSIVE


def test_a_canary_that_nobody_reports_on_ends_undecided_in_time(bench: Bench, tmp_path: Path) -> None:
    candidate = on_canary(bench, plan=replace(PLAN, max_s=3600.0))
    watch = judge(bench, tmp_path)
    watch.look()
    watch.look(now=time.time() + 3000)
    assert state(bench, candidate) is CandidateState.CANARY
    watch.look(now=time.time() + 4000)
    assert state(bench, candidate) is CandidateState.INCONCLUSIVE
    assert "Undecided after" in bench.controller.candidate(candidate.id).reason


@pytest.mark.parametrize("promoted", [True, False])
def test_a_person_ends_a_canary_either_way(bench: Bench, tmp_path: Path, promoted: bool) -> None:
    candidate = on_canary(bench)
    if promoted:
        assert bench.controller.promote(candidate.id, reason="seen enough").step == 2
    else:
        assert bench.controller.reject(candidate.id, reason="seen enough").state is CandidateState.REJECTED
    ended = rollout.of(bench.controller, candidate.id)
    assert ended is not None
    assert ended.ended_at is not None
    assert "seen enough" in ended.finding["ended_by"]  # type: ignore[index]
    assert judge(bench, tmp_path).look() == []


def test_nothing_is_half_done_when_the_transaction_fails(bench: Bench) -> None:
    candidate = bench.candidate("better")
    with write(bench.engine).begin() as tx:
        rollout.begin(tx, candidate, verdict(Decision.PROMOTE), PLAN)  # one is there already
    with pytest.raises(sa.exc.IntegrityError):
        Controller(bench.engine, bench.artifacts, plan=PLAN).settle(candidate, verdict(Decision.PROMOTE), expected_head=1)
    assert state(bench, candidate) is CandidateState.PROPOSED
    assert bench.controller.verdict(candidate.id) is None


def test_a_shadow_is_held_for_a_person_and_moves_no_head(bench: Bench) -> None:
    candidate = on_canary(bench, plan=replace(PLAN, mode=Mode.SHADOW))
    assert candidate.state is CandidateState.HELD
    with bench.engine.connect() as connection:
        assert [one.candidate for one in rollout.under_way(connection, Mode.SHADOW)] == [candidate]
    assert rollout.canary(bench.controller, "default") is None
    assert Component.HARNESS in candidate.components
    assert bench.controller.promote(candidate.id).step == 2
    with bench.engine.connect() as connection:
        assert rollout.under_way(connection, Mode.SHADOW) == []
