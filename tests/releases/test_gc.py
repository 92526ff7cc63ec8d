"""What `reef gc` lets go of, and what it keeps."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from chains import STARTER, Bench, verdict

from reef.artifacts.folders import take_in
from reef.artifacts.tree import LargeFile, content_id
from reef.errors import Conflict
from reef.releases import gc, mirror
from reef.releases.imports import bring_in
from reef.types import Candidate, CandidateState, Component, Decision

DAY_S = gc.DAY_S


def rejected(bench: Bench, text: str) -> Candidate:
    candidate = bench.candidate(text)
    bench.controller.settle(candidate, verdict(Decision.REJECT), expected_head=candidate.base_step)
    return candidate


def there(bench: Bench, commit: str) -> bool:
    return subprocess.run(["git", "cat-file", "-e", commit], cwd=bench.artifacts.path, timeout=30, capture_output=True).returncode == 0


def in_days(days: float) -> float:
    return time.time() + days * DAY_S


def age(folder: Path, *, days: float) -> None:
    """Make git objects as old as they would be."""
    then = time.time() - days * DAY_S
    for file in folder.rglob("objects/??/*"):
        os.utime(file, (then, then))


def test_the_bytes_of_what_came_to_nothing_go_after_the_grace_period(bench: Bench) -> None:
    candidate, waiting = rejected(bench, "worse"), bench.candidate("waits")
    bench.promote("better")
    assert gc.collect(bench.controller, grace_s=30 * DAY_S) == gc.Collected((), (), 0, 0)
    dry = gc.collect(bench.controller, grace_s=30 * DAY_S, dry=True, now=in_days(31))
    assert dry.candidates == (candidate.id,)
    assert bench.artifacts.ref(candidate.branch) == candidate.commit
    assert gc.collect(bench.controller, grace_s=30 * DAY_S, now=in_days(31)) == dry
    assert bench.artifacts.ref(candidate.branch) is None
    assert not there(bench, candidate.commit)
    now = bench.controller.candidate(candidate.id)
    assert now.state is CandidateState.REJECTED
    assert now.dropped_at is not None
    assert bench.controller.verdict(candidate.id) == verdict(Decision.REJECT)
    assert bench.artifacts.ref(waiting.branch) == waiting.commit
    assert bench.controller.verify("default") == []
    assert gc.collect(bench.controller, grace_s=30 * DAY_S, now=in_days(31)) == gc.Collected((), (), 0, 0)
    assert [line for line in bench.controller.repair() if "abandoned" not in line] == []


def test_what_somebody_went_on_with_stays(bench: Bench) -> None:
    candidate = rejected(bench, "worse")
    mine = bench.artifacts.commit(STARTER, parents=[candidate.commit], message="By hand")
    bench.artifacts.set_ref(candidate.branch, mine)
    gc.collect(bench.controller, grace_s=0, now=in_days(1))
    assert bench.artifacts.ref(candidate.branch) == mine
    assert there(bench, candidate.commit)


def test_a_branch_that_is_being_written_stays_and_one_that_became_nothing_goes(bench: Bench) -> None:
    base = bench.controller.head("default").commit
    with bench.artifacts.worktree("candidates/default/at-work", base=base):
        gc.collect(bench.controller, grace_s=0, now=in_days(1))
        assert bench.artifacts.ref("candidates/default/at-work") == base
    assert gc.collect(bench.controller, grace_s=0).branches == ()  # too young
    assert gc.collect(bench.controller, grace_s=0, now=in_days(1)).branches == ("refs/heads/candidates/default/at-work",)


def test_a_release_whose_tag_is_missing_keeps_its_bytes(bench: Bench) -> None:
    release = bench.promote("two")
    for ref in (mirror.head_ref("default"), mirror.step_ref("default", 2)):
        bench.artifacts.delete_refs({ref: release.commit})
    gc.collect(bench.controller, grace_s=0, now=in_days(1))
    assert bench.controller.verify("default") == []


def test_a_dropped_candidate_cannot_be_promoted(bench: Bench) -> None:
    candidate = bench.candidate("perhaps")
    bench.controller.settle(candidate, verdict(Decision.INCONCLUSIVE), expected_head=1)
    gc.collect(bench.controller, grace_s=0, now=in_days(1))
    with pytest.raises(Conflict, match="gc"):
        bench.controller.promote(candidate.id)


def test_large_files_go_with_the_last_that_points_at_them(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    files = {}
    for name in ("kept", "dropped"):
        (folder / "model.safetensors").unlink(missing_ok=True)
        (folder / "model.safetensors").write_bytes(name.encode() * 1000)
        tree = take_in(bench.artifacts, folder)
        file = tree["model.safetensors"]
        assert isinstance(file, LargeFile)
        files[name] = bench.artifacts.large.path(file.sha256)
        if name == "kept":
            bring_in(bench.controller, "default", Component.MODEL, tree, summary=name)
    commit = bench.artifacts.commit(tree, message="dropped")
    candidate = bench.controller.open_candidate(
        scenario="default", component=Component.MODEL, recipe="r", base_step=2, branch=mirror.candidate_branch("default", "x"),
        commit=commit, content_id=content_id(tree), summary="", reports=(),
    )  # fmt: skip
    bench.controller.settle(candidate, verdict(Decision.REJECT), expected_head=2)
    assert gc.collect(bench.controller, grace_s=DAY_S / 2).large_files == 0
    age(bench.artifacts.path, days=1)
    dry = gc.collect(bench.controller, grace_s=0, dry=True, now=in_days(1))
    assert (dry.large_files, dry.large_bytes) == (1, 7000)
    assert gc.collect(bench.controller, grace_s=0, now=in_days(1)).large_files == 1
    assert files["kept"].exists()
    assert not files["dropped"].exists()
    assert bench.controller.verify("default") == []
