"""Publishers that race and publishers that die, as threads and as real processes."""

import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from chains import STARTER, Bench, verdict

from reef.errors import StaleHead
from reef.experience.database import create_tables
from reef.types import CandidateState, Decision

PUBLISHERS, ROUNDS = 4, 5


def test_of_concurrent_publishers_exactly_one_wins_each_step(bench: Bench, tmp_path: Path) -> None:
    ready = threading.Barrier(PUBLISHERS)
    benches = [bench, *(Bench.open(tmp_path) for _ in range(PUBLISHERS - 1))]

    def publish(number: int) -> list[int]:
        won = []
        for turn in range(ROUNDS):
            mine = benches[number]
            candidate = mine.candidate(f"{number}-{turn}", reports=(f"r{number}-{turn}",))
            ready.wait(60)
            try:
                release = mine.controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=turn + 1, consumed=candidate.reports)
                assert release is not None
                won.append(release.step)
            except StaleHead:
                assert mine.controller.candidate(candidate.id).state is CandidateState.PROPOSED
            ready.wait(60)
        return won

    with ThreadPoolExecutor(PUBLISHERS) as pool:
        won = sorted(step for steps in pool.map(publish, range(PUBLISHERS)) for step in steps)
    assert won == list(range(2, ROUNDS + 2))
    assert bench.controller.verify("default") == []
    assert len(bench.consumed()) == ROUNDS
    assert bench.artifacts.ref("releases/default") == bench.controller.head("default").commit
    assert [line for line in bench.controller.repair() if "now points" in line] == []


def _ensure(folder: Path) -> str:
    return Bench.open(folder).controller.ensure_scenario("shared", starter=STARTER).hash


def test_processes_that_create_a_scenario_at_once_get_the_same_release(tmp_path: Path) -> None:
    create_tables(Bench.open(tmp_path).engine)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        hashes = pool.map(_ensure, [tmp_path] * 3)
    assert len(set(hashes)) == 1
    assert Bench.open(tmp_path).controller.verify("shared") == []


def test_threads_that_create_a_scenario_at_once_get_the_same_release(bench: Bench) -> None:
    with ThreadPoolExecutor(6) as pool:
        releases = list(pool.map(lambda _: bench.controller.ensure_scenario("shared", starter=STARTER), range(6)))
    assert len(set(releases)) == 1


CRASH = """
import os, signal, sys
from pathlib import Path
from chains import Bench, verdict
from reef.releases import mirror, statements
from reef.types import Decision

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

folder, where, operation = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
bench = Bench.open(folder)
if where == "before the transaction":
    bench.controller._publish = die
elif where == "inside the transaction":
    append = statements.append
    statements.append = lambda *args: (append(*args), die())
elif where == "between transaction and refs":
    mirror.follow = die
if operation == "promote":
    [candidate] = bench.controller.candidates("default", states=("proposed",))
    bench.controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=2, consumed=("r1",), state={"n": 1})
else:
    bench.controller.rollback("default", 1)
"""


@pytest.mark.parametrize("operation", ["promote", "rollback"])
@pytest.mark.parametrize("where", ["before the transaction", "inside the transaction", "between transaction and refs"])
def test_after_a_kill_the_head_is_the_old_or_the_new_one_whole(bench: Bench, tmp_path: Path, where: str, operation: str) -> None:
    bench.promote("two")
    candidate = bench.candidate("three", reports=("r1",))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), where, operation], env=environment, timeout=60, check=False)
    assert done.returncode == -9

    after = Bench.open(tmp_path)
    mended = after.controller.repair()
    head = after.controller.head("default")
    published = where == "between transaction and refs"
    assert head.step == (3 if published else 2)
    assert after.controller.verify("default") == []
    assert after.artifacts.ref("releases/default") == head.commit
    assert after.artifacts.ref(f"refs/tags/default/step-{head.step}") == head.commit
    assert any("now points" in line for line in mended) == published
    settled = published and operation == "promote"
    assert after.consumed() == ({"r1": candidate.id} if settled else {})
    assert after.controller.candidate(candidate.id).state is (CandidateState.RELEASED if settled else CandidateState.ABANDONED)
    assert (after.controller.verdict(candidate.id) is not None) == settled
    assert after.controller.recipe_state("default", "cordis") == ({"n": 1} if settled else {})
    assert after.controller.repair() == []
    assert after.promote("after all").step == head.step + 1
