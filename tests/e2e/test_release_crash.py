"""SIGKILL at every write boundary of what changes releases, one after the other, and publishers that race. On both databases.

Whatever was cut short: after a restart the head is the old or the new one, whole; what was consumed agrees with it; the audit is clean; and
the operation can be done again.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1] / "releases"))

from chains import Bench, verdict

from reef import failpoints
from reef.artifacts.folders import take_in
from reef.errors import Conflict, ReefError, StaleHead
from reef.experience.schema import consumptions
from reef.releases import gc, rollout
from reef.releases.canary_end import conclude
from reef.releases.controller import Controller
from reef.releases.imports import bring_in
from reef.releases.rollout import Mode, Plan
from reef.types import CandidateState, Component, Decision, File

PUBLISHERS = 10
SETTINGS = {"settings/pi.json": File(b"{}")}


def only(bench: Bench, state: CandidateState) -> str:
    [candidate] = bench.controller.candidates("default", states=(state,))
    return candidate.id


def settle(decision: Decision) -> Callable[[Bench, Path], None]:
    def run(bench: Bench, folder: Path) -> None:
        candidate = bench.controller.candidate(only(bench, CandidateState.PROPOSED))
        head = bench.controller.head("default").step
        bench.controller.settle(candidate, verdict(decision), expected_head=head, consumed=("r1", "r2"), state={"n": 1})

    return run


def settle_on_canary(bench: Bench, folder: Path) -> None:
    candidate = bench.controller.candidate(only(bench, CandidateState.PROPOSED))
    controller = Controller(bench.engine, bench.artifacts, plan=Plan(mode=Mode.CANARY))
    controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=2, consumed=("r1", "r2"), state={"n": 1})


def end_canary(decision: Decision) -> Callable[[Bench, Path], None]:
    def run(bench: Bench, folder: Path) -> None:
        conclude(bench.controller, only(bench, CandidateState.CANARY), verdict(decision))

    return run


def propose(bench: Bench, folder: Path) -> None:
    bench.candidate("another")


def roll_back(bench: Bench, folder: Path) -> None:
    bench.controller.rollback("default", 1, expected_head=2)


def promote(bench: Bench, folder: Path) -> None:
    bench.controller.promote(only(bench, CandidateState.HELD))


def reject(bench: Bench, folder: Path) -> None:
    bench.controller.reject(only(bench, CandidateState.HELD))


def import_folder(bench: Bench, folder: Path) -> None:
    tree = take_in(bench.artifacts, folder / "checkpoint")
    bring_in(bench.controller, "default", Component.MODEL, tree, summary="weights", expected_head=2)


def collect(bench: Bench, folder: Path) -> None:
    gc.collect(bench.controller, grace_s=0, now=time.time() + 2 * gc.DAY_S)


OPERATIONS: dict[str, Callable[[Bench, Path], None]] = {
    "settle, promoted": settle(Decision.PROMOTE),
    "settle, rejected": settle(Decision.REJECT),
    "settle, on canary": settle_on_canary,
    "canary survives": end_canary(Decision.PROMOTE),
    "canary is rolled back": end_canary(Decision.REJECT),
    "propose": propose,
    "rollback": roll_back,
    "promote": promote,
    "reject": reject,
    "import": import_folder,
    "gc": collect,
}
POINTS = {
    "settle, promoted": (
        "release.stored", "candidate.moved", "settle.verdict", "settle.consumed", "settle.state", "release.inserted", "release.committed",
        "release.refs",
    ),
    "settle, rejected": ("candidate.moved", "settle.verdict", "settle.consumed", "settle.state", "candidate.settled"),
    "settle, on canary": ("candidate.moved", "settle.verdict", "settle.consumed", "settle.state", "candidate.settled"),
    "canary survives": ("release.stored", "candidate.moved", "release.inserted", "release.committed", "release.refs"),
    "canary is rolled back": ("candidate.moved", "candidate.settled"),
    "propose": ("candidate.inserted", "candidate.committed"),
    "rollback": ("release.stored", "release.inserted", "release.committed", "release.refs"),
    "promote": ("release.stored", "candidate.moved", "release.inserted", "release.committed", "release.refs"),
    "reject": ("candidate.moved", "candidate.settled"),
    "import": (
        "lfs.hashed", "lfs.hashed:2", "lfs.placed", "lfs.placed:2", "release.stored", "release.inserted", "release.committed",
        "release.refs",
    ),
    "gc": ("gc.marked", "gc.committed", "gc.refs", "gc.objects", "gc.large", "gc.large:2"),
}  # fmt: skip
CASES = [(operation, point) for operation, points in POINTS.items() for point in points]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, "reef.releases.controller", "reef.releases.gc", "chains", "psycopg"])


def _run(folder: Path, operation: str, point: str) -> None:
    os.environ[failpoints.VARIABLE] = point
    importlib.reload(failpoints)  # it looks at the environment when it is imported, which the server of forks did before
    OPERATIONS[operation](Bench.open(folder), folder)


def run(folder: Path, operation: str, point: str) -> int | None:
    process = _context.Process(target=_run, args=(folder, operation, point))
    process.start()
    process.join(60)
    return process.exitcode


def prepare(folder: Path, operation: str) -> Bench:
    """A chain of two releases, and what the operation works on."""
    bench = Bench.create(folder)
    bench.promote("two")
    if operation == "gc":
        (folder / "w").mkdir()
        for number in range(2):
            file = folder / "w" / f"{number}.safetensors"
            file.write_bytes(bytes([number]) * 1000)
            bench.artifacts.large.put(file)  # nothing will point at it
        for text in ("bad", "worse"):
            candidate = bench.candidate(text)
            bench.controller.settle(candidate, verdict(Decision.REJECT), expected_head=2)
    elif operation in ("promote", "reject"):
        candidate = bench.candidate("three", reports=("r1", "r2"), also=SETTINGS)
        bench.controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=2, consumed=("r1", "r2"))
    elif operation.startswith("canary"):
        bench.candidate("three", reports=("r1", "r2"))
        settle_on_canary(bench, folder)
    elif operation == "import":
        (folder / "checkpoint").mkdir()
        (folder / "checkpoint" / "config.json").write_text("{}")
        for number in range(2):
            (folder / "checkpoint" / f"model-{number}.safetensors").write_bytes(bytes([number]) * 1000)
    elif operation.startswith("settle"):
        bench.candidate("three", reports=("r1", "r2"))
    return bench


@pytest.mark.parametrize(("operation", "point"), CASES, ids=[f"{operation} at {point}" for operation, point in CASES])
def test_after_a_kill_all_is_as_before_or_done(tmp_path: Path, database_url: str, operation: str, point: str) -> None:
    before = prepare(tmp_path, operation)
    old = before.controller.head("default")
    assert run(tmp_path, operation, point) == -signal.SIGKILL

    after = Bench.open(tmp_path)
    after.controller.repair()
    assert after.controller.verify("default") == []
    head = after.controller.head("default")
    assert head == old or (head.step, head.previous_hash) == (old.step + 1, old.hash)
    consistent(after, published=head != old)
    assert after.controller.repair() == []
    again(after, tmp_path, operation)
    assert after.controller.verify("default") == []
    consistent(after, published=after.controller.head("default") != old)


def consistent(bench: Bench, *, published: bool) -> None:
    """Consumption, verdicts and states agree with each other and with the head."""
    head = bench.controller.head("default")
    with bench.engine.connect() as connection:
        consumed = {row.report: row.candidate for row in connection.execute(sa.select(consumptions))}
    for candidate in bench.controller.candidates("default"):
        settled = candidate.state in (CandidateState.RELEASED, CandidateState.REJECTED, CandidateState.HELD, CandidateState.CANARY)
        rolled_out = rollout.of(bench.controller, candidate.id)
        assert rolled_out is None or (rolled_out.ended_at is None) == (candidate.state is CandidateState.CANARY)
        assert (bench.controller.verdict(candidate.id) is not None) == settled
        assert {report for report in candidate.reports if consumed.get(report) == candidate.id} == (
            set(candidate.reports) if settled else set()
        )
        released = [release for release in bench.controller.releases("default") if release.candidate == candidate.id]
        assert len(released) == (candidate.state is CandidateState.RELEASED)
    if published and head.candidate:
        assert bench.controller.candidate(head.candidate).state is CandidateState.RELEASED


def again(bench: Bench, folder: Path, operation: str) -> None:
    """What was cut short can be done now, unless it was done; a settlement starts anew from its reports."""
    if operation.startswith("settle"):
        if "r1" not in bench.consumed():
            bench.candidate("three", reports=("r1", "r2"))
            OPERATIONS[operation](bench, folder)
        assert set(bench.consumed()) == {"r1", "r2"}
        assert bench.controller.recipe_state("default", "cordis") == {"n": 1}
        return
    try:
        OPERATIONS[operation](bench, folder)
    except (ReefError, ValueError) as error:  # done already: another head, no candidate that is held
        assert isinstance(error, Conflict | ValueError)
    if operation == "gc":
        assert list(bench.artifacts.large.all()) == []
        assert all(candidate.dropped_at for candidate in bench.controller.candidates("default", states=(CandidateState.REJECTED,)))


def test_every_point_of_the_room_is_tried() -> None:
    rooms = ("lfs.", "candidate.", "settle.", "release.", "gc.")
    tried = {point.partition(":")[0] for points in POINTS.values() for point in points}
    assert tried == {point for point in failpoints.POINTS if point.startswith(rooms)}


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_of_ten_publishers_exactly_one_wins_each_step(tmp_path: Path, database_url: str, rounds: int) -> None:
    Bench.create(tmp_path)
    benches = [Bench.open(tmp_path) for _ in range(PUBLISHERS)]
    ready = threading.Barrier(PUBLISHERS)

    def publish(number: int) -> list[int]:
        mine, won = benches[number], []
        for turn in range(rounds):
            candidate = mine.candidate(f"{number}-{turn}", reports=(f"r{number}-{turn}",))
            ready.wait(120)
            try:
                release = mine.controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=turn + 1, consumed=candidate.reports)
                assert release is not None
                won.append(release.step)
            except StaleHead:
                assert mine.controller.candidate(candidate.id).state is CandidateState.PROPOSED
            ready.wait(120)
        return won

    with ThreadPoolExecutor(PUBLISHERS) as pool:
        won = sorted(step for steps in pool.map(publish, range(PUBLISHERS)) for step in steps)
    bench = benches[0]
    assert won == list(range(2, rounds + 2))
    assert bench.controller.verify("default") == []
    assert len(bench.consumed()) == rounds
    assert [line for line in bench.controller.repair() if "now points" in line] == []
