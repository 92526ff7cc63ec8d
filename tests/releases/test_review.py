"""What waits for a person, what comes from outside, who stays where, and components that move together."""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import STARTER, Bench, verdict

from reef.artifacts.folders import kind_of, take_in
from reef.artifacts.tree import content_id
from reef.errors import Conflict, InvalidRequest, NotFound, StaleHead
from reef.releases import mirror, pins
from reef.releases.controller import Controller
from reef.releases.imports import bring_in
from reef.types import Candidate, CandidateState, Component, Content, Decision, File

HOOK = {"settings/pi.json": File(b'{"hooks": {}}')}


def held(bench: Bench, text: str = "better") -> Candidate:
    candidate = bench.candidate(text, reports=("r1",), also=HOOK)
    assert bench.controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=candidate.base_step, consumed=("r1",)) is None
    return bench.controller.candidate(candidate.id)


def weights(bench: Bench, folder: Path, *, value: bytes) -> Content:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "model.safetensors").write_bytes(value * 5000)
    tree = take_in(bench.artifacts, folder)
    return Content(content_id(tree), bench.artifacts.commit(tree, message="weights"))


@pytest.mark.parametrize("path", ["settings/pi.json", "extensions/pi/a.ts", "hooks/x"])
def test_what_runs_code_is_held_though_the_gate_would_promote_it(bench: Bench, path: str) -> None:
    candidate = bench.candidate("better", reports=("r1",), also={path: File(b"{}")})
    assert bench.controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=1, consumed=("r1",)) is None
    now = bench.controller.candidate(candidate.id)
    assert now.state is CandidateState.HELD
    assert path in now.reason
    assert bench.controller.head("default").step == 1
    assert bench.controller.verdict(candidate.id) == verdict(Decision.PROMOTE)
    assert bench.consumed() == {"r1": candidate.id}
    assert "abandoned" not in " ".join(bench.controller.repair())
    assert bench.controller.candidate(candidate.id).state is CandidateState.HELD


def test_what_is_held_is_configured(bench: Bench) -> None:
    open_house = Controller(bench.engine, bench.artifacts, hold=())
    assert open_house.settle(bench.candidate("a", also=HOOK), verdict(Decision.PROMOTE), expected_head=1) is not None
    strict = Controller(bench.engine, bench.artifacts, hold=("AGENTS.md",))
    assert strict.settle(bench.candidate("b", also=HOOK), verdict(Decision.PROMOTE), expected_head=2) is None
    assert Controller(bench.engine, bench.artifacts, hold=("harness",)).why_held(
        bench.candidate("c"), head=bench.controller.head("default")
    )


def test_a_worse_candidate_is_rejected_and_not_held(bench: Bench) -> None:
    candidate = bench.candidate("worse", also=HOOK)
    bench.controller.settle(candidate, verdict(Decision.REJECT), expected_head=1)
    assert bench.controller.candidate(candidate.id).state is CandidateState.REJECTED


def test_a_person_releases_what_is_held(bench: Bench) -> None:
    candidate = held(bench)
    release = bench.controller.promote(candidate.id, reason="read it")
    assert (release.step, release.operation, release.candidate) == (2, "promote", candidate.id)
    assert bench.controller.tree("default", 2)["settings/pi.json"] == HOOK["settings/pi.json"]
    assert bench.controller.candidate(candidate.id).reason == "promoted after review: read it"
    assert bench.controller.verify("default") == []
    with pytest.raises(Conflict, match="is released"):
        bench.controller.promote(candidate.id)
    after = bench.candidate("with the same settings", also=HOOK)
    assert bench.controller.settle(after, verdict(Decision.PROMOTE), expected_head=2) is not None  # they were seen


def test_what_the_gate_could_not_decide_a_person_may(bench: Bench) -> None:
    candidate = bench.candidate("perhaps")
    bench.controller.settle(candidate, verdict(Decision.INCONCLUSIVE), expected_head=1)
    assert bench.controller.promote(candidate.id).step == 2
    refused = bench.candidate("worse")
    bench.controller.settle(refused, verdict(Decision.REJECT), expected_head=2)
    with pytest.raises(Conflict, match="is rejected"):
        bench.controller.promote(refused.id)
    with pytest.raises(Conflict, match="is proposed"):
        bench.controller.promote(bench.candidate("new").id)


def test_a_person_refuses_what_is_held(bench: Bench) -> None:
    candidate = held(bench)
    assert bench.controller.reject(candidate.id, reason="too wide").state is CandidateState.REJECTED
    for again in (bench.controller.reject, bench.controller.promote):
        with pytest.raises(Conflict):
            again(candidate.id)
    with pytest.raises(NotFound):
        bench.controller.reject("c-0")


def test_what_was_made_for_another_head_is_not_promoted_until_that_serves_again(bench: Bench) -> None:
    candidate = held(bench)
    bench.promote("meanwhile")
    with pytest.raises(StaleHead, match="release 2 serves by now"):
        bench.controller.promote(candidate.id)
    assert bench.controller.candidate(candidate.id).state is CandidateState.HELD
    bench.controller.rollback("default", 1)
    assert bench.controller.promote(candidate.id).step == 4
    assert bench.controller.verify("default") == []


def test_a_harness_made_elsewhere_is_the_next_release(bench: Bench) -> None:
    tree = {**STARTER, "AGENTS.md": File(b"by hand")}
    release = bring_in(bench.controller, "default", Component.HARNESS, tree, summary="By hand", expected_head=1)
    assert (release.step, release.operation, release.content_id) == (2, "import", content_id(tree))
    assert dict(bench.controller.tree("default", 2)) == tree
    with pytest.raises(Conflict, match="already"):
        bring_in(bench.controller, "default", Component.HARNESS, tree, summary="Again")
    with pytest.raises(StaleHead):
        bring_in(bench.controller, "default", Component.HARNESS, STARTER, summary="Late", expected_head=1)
    assert bench.controller.verify("default") == []


def test_a_checkpoint_is_released_beside_the_harness_and_comes_back_with_a_rollback(bench: Bench, tmp_path: Path) -> None:
    first, second = weights(bench, tmp_path / "w", value=b"1"), weights(bench, tmp_path / "w", value=b"2")
    for content in (first, second):
        tree = bench.artifacts.read(content.commit)
        kind = kind_of(tree)
        bring_in(bench.controller, "default", kind.component, tree, summary="Weights", kind=kind)
    bench.promote("better")
    head = bench.controller.head("default")
    assert {name: content.content_id for name, content in head.components.items()} == {
        "harness": head.content_id,
        "model": second.content_id,
    }
    back = bench.controller.rollback("default", 2)
    assert back.others["model"].content_id == first.content_id
    assert back.content_id == content_id(STARTER)
    assert bench.controller.verify("default") == []
    assert "oid sha256" in bench.controller.diff("default", 2, 3)


def test_a_model_and_its_harness_move_together(bench: Bench, tmp_path: Path) -> None:
    model = weights(bench, tmp_path / "w", value=b"1")
    tree = {**STARTER, "AGENTS.md": File(b"for the new weights")}
    commit = bench.artifacts.commit(tree, parents=[bench.controller.head("default").commit], message="both")
    candidate = bench.controller.open_candidate(
        scenario="default", component=Component.MODEL, recipe="sao", base_step=1, branch=mirror.candidate_branch("default", "both"),
        commit=model.commit, content_id=model.content_id, summary="Both", reports=(),
        companions={"harness": Content(content_id(tree), commit)},
    )  # fmt: skip
    assert bench.controller.candidate(candidate.id) == candidate
    release = bench.controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=1)
    assert release is not None
    assert release.content_id == content_id(tree)
    assert release.others["model"] == model
    assert dict(bench.controller.tree("default", 2)) == tree
    assert bench.controller.head("default") == release
    assert bench.controller.verify("default") == []


def test_a_pinned_client_stays_and_the_others_follow_the_head(bench: Bench) -> None:
    bench.promote("two")
    bench.promote("three")

    def steps() -> tuple[int, int]:
        return tuple(pins.release_for(bench.controller, "default", client=client).step for client in ("mine", "other"))  # type: ignore[return-value]

    assert steps() == (3, 3)
    pins.pin(bench.controller, "default", 1, client="mine")
    assert steps() == (1, 3)
    pins.pin(bench.controller, "default", 2)
    assert steps() == (1, 2)
    assert pins.pins(bench.controller, "default") == {"": 2, "mine": 1}
    pins.pin(bench.controller, "default", 2, client="mine")
    bench.promote("four")
    assert steps() == (2, 2)
    pins.unpin(bench.controller, "default")
    pins.unpin(bench.controller, "default", client="mine")
    assert steps() == (4, 4)
    with pytest.raises(NotFound):
        pins.unpin(bench.controller, "default")
    with pytest.raises(NotFound):
        pins.pin(bench.controller, "default", 9)
    with pytest.raises(InvalidRequest):
        pins.pin(bench.controller, "default", 1, client="x\n")
