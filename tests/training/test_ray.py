"""Two processes that Ray Train starts: the same result as one process, on a cluster of the trainer's own and on one of two nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra `train` is not installed")
pytest.importorskip("peft", reason="the extra `train` is not installed")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'reef[ray]'")
pytest.importorskip("pyarrow", reason="Ray Train is not installed: pip install 'reef[ray]'")
from reef.errors import TrainingError
from reef.serving.models import tiny
from reef.training import checkpoint, watch
from reef.training.job import LOG, TrainingJob
from reef.training.sample import Sample
from tests.support import training as toys

TIMEOUT_S = 400.0
pytestmark = pytest.mark.timeout(1000)  # Ray starts half a dozen processes before those that train
RAY = {"processes": 2, "backend": "ray"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def samples(base: Path) -> tuple[Sample, ...]:
    return toys.rewarded(base, reward=toys.even_share, groups=3, siblings=3)  # nine: the ranks have unequal shares


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    """The address of a cluster of two nodes that have room for one process each."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    before = signal.getsignal(signal.SIGTERM)  # which Ray takes over
    cluster = Cluster()
    try:
        for number in (2, 3):
            cluster.add_node(num_cpus=1, node_ip_address=f"127.0.0.{number}", include_dashboard=False, object_store_memory=100 << 20)
        yield cluster.address
    finally:
        cluster.shutdown()
        signal.signal(signal.SIGTERM, before)


def run(job: TrainingJob) -> watch.TrainingResult:
    result = watch.run(job, timeout_s=TIMEOUT_S, stop=threading.Event())
    assert checkpoint.problems(result.folder) == []
    return result


def compare(folder: Path, *, base: Path, samples: tuple[Sample, ...], ray: dict[str, object], settings: dict[str, object]) -> TrainingJob:
    """Train alone and by two of Ray's; the second job."""
    jobs = [
        toys.job(folder / name, base=base, samples=samples, settings={**settings, **how, "micro_batch_tokens": 40, "epochs": 2})
        for name, how in (("alone", {}), ("ray", ray))
    ]
    one, two = (run(job) for job in jobs)
    toys.check_alike(one, two, rate=float(settings.get("learning_rate", 1e-3)))  # type: ignore[arg-type]
    return jobs[1]


def test_two_processes_of_ray_give_what_one_process_gives(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    job = compare(tmp_path, base=base, samples=samples, ray=RAY, settings={})
    assert (job.folder / LOG).read_text().count("event='trained'") == 2  # both said what they did, where it is looked for


def test_a_cluster_that_runs_already_is_used(tmp_path: Path, base: Path, samples: tuple[Sample, ...], two_nodes: str) -> None:
    compare(tmp_path, base=base, samples=samples, ray={**RAY, "address": two_nodes}, settings={"method": "full", "learning_rate": 2e-5})


def test_what_one_of_them_gives_up_on_is_told(tmp_path: Path, base: Path, samples: tuple[Sample, ...], two_nodes: str) -> None:
    settings = {**RAY, "address": two_nodes}
    job = toys.job(tmp_path / "job", base=base, samples=[each.replace(reward=0.0) for each in samples], settings=settings)
    with pytest.raises(TrainingError, match="can be learned from"):
        run(job)
    assert not job.output.exists()
    assert "event='no checkpoint'" in (job.folder / LOG).read_text().splitlines()[-1]  # the last word is the trainer's, not that of a crash


def test_a_cluster_that_is_not_there_is_told(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=samples, settings={**RAY, "address": "127.0.0.1:1"})
    with pytest.raises(TrainingError, match=r"the Ray cluster 127.0.0.1:1 cannot be used") as told:
        run(job)
    assert "ray status" in told.value.hint


def test_nothing_of_ray_outlives_a_learner_that_was_killed(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    endless = {**RAY, "epochs": 1000, "samples_per_update": 1, "micro_batch_tokens": 1}
    job = toys.job(tmp_path / "job", base=base, samples=samples, settings=endless)
    job.save()
    learner = (
        "import sys, threading; from pathlib import Path; from reef.training import watch; from reef.training.job import TrainingJob;"
        "watch.run(TrainingJob.load(Path(sys.argv[1])), timeout_s=1000, stop=threading.Event())"
    )
    popen = subprocess.Popen([sys.executable, "-c", learner, str(job.folder)])
    try:
        log = job.folder / LOG
        wait_for(lambda: log.exists() and b"event='update'" in log.read_bytes())
        trainer = next(pid for pid, (parent, _) in processes().items() if parent == popen.pid)
        assert len(of_session(trainer)) > 3  # itself, two workers and what Ray has around them
    finally:
        popen.kill()
        popen.wait()
    wait_for(lambda: not of_session(trainer))
    assert not job.output.exists()


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)


def of_session(leader: int) -> list[int]:
    """The processes of the session that the trainer leads: all that Ray starts for it stays in that."""
    return [pid for pid, (_, session) in processes().items() if session == leader]


def processes() -> dict[int, tuple[int, int]]:
    """Parent and session of every process that lives."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                found[int(folder.name)] = (int(parent), int(session))
    return found
