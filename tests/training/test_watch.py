"""The trainer's process: what it does is told, what it must not outlive it does not, and whatever ends it, the next run works."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra `train` is not installed")
pytest.importorskip("peft", reason="the extra `train` is not installed")

from reef import failpoints
from reef.errors import StorageError, TrainingError, TrainingTimeout
from reef.serving.models import tiny
from reef.training import checkpoint, watch
from reef.training.job import ERROR, LOG, TrainingJob
from reef.training.sample import Sample, Teacher, TopTokens
from reef.training.trainer import Trainer
from tests.support import training as toys

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
ENDLESS = {"epochs": 1000, "samples_per_update": 1, "micro_batch_tokens": 1}


class Crashing(Trainer):
    """Ends its process as an error in a kernel would."""

    def train(self, job: TrainingJob) -> watch.TrainingResult:
        print("the last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def samples(base: Path) -> tuple[Sample, ...]:
    return toys.rewarded(base, reward=toys.even_share)


def wait_for(what: Callable[[], object], *, timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)


def run(job: TrainingJob, *, timeout_s: float = TIMEOUT_S) -> watch.TrainingResult:
    return watch.run(job, timeout_s=timeout_s, stop=threading.Event())


def trainers(job: TrainingJob) -> list[int]:
    """Processes that work on a job."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if b"reef.training" in words and str(job.folder).encode() in words and not zombie:
                found.append(int(entry.name))
    return found


def updating(job: TrainingJob) -> bool:
    log = job.folder / LOG
    return log.exists() and b"event='update'" in log.read_bytes()


def test_a_job_is_read_as_it_was_written(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    full = samples[0].replace(
        teacher=Teacher.with_prompt((5, 6), sample_tokens=samples[0].tokens, mask=samples[0].mask),
        top=TopTokens(ids=((1, 2),) * samples[0].generated, logprobs=((-0.1, -3.0),) * samples[0].generated),
        votes=(1.0,) * samples[0].generated,
    )
    job = toys.job(
        tmp_path / "job", base=base, samples=[full, *samples[1:]], options={"low": 0.3}, parent=tmp_path / "p", state=tmp_path / "s"
    )
    job.save()
    assert TrainingJob.load(job.folder) == job


def test_a_job_is_done_in_a_process_of_its_own_and_not_done_twice(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=samples, settings={"nice": 5})
    result = run(job)
    assert checkpoint.problems(result.folder) == []
    assert result.metrics["updates"] == 1
    written = result.folder.stat().st_mtime_ns, (job.folder / LOG).stat().st_mtime_ns
    assert run(job) == result
    assert (result.folder.stat().st_mtime_ns, (job.folder / LOG).stat().st_mtime_ns) == written


def test_what_the_trainer_gives_up_on_is_told(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=[sample.replace(reward=1.0) for sample in samples])
    with pytest.raises(TrainingError, match="can be learned from") as told:
        run(job)
    assert told.value.hint


def test_a_crash_is_told_with_the_end_of_the_log(
    tmp_path: Path, base: Path, samples: tuple[Sample, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    job = toys.job(tmp_path / "job", base=base, samples=samples, settings={"trainer": f"{__name__}:Crashing"})
    with pytest.raises(TrainingError, match=r"signal SIGSEGV:\n(.|\n)*the last words"):
        run(job)


def test_a_trainer_that_takes_too_long_is_killed(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=samples, settings=ENDLESS)
    with pytest.raises(TrainingTimeout, match="was killed after 1 s"):
        run(job, timeout_s=1.0)
    assert trainers(job) == []
    assert not job.output.exists()


def test_a_trainer_that_was_stopped_in_mid_step_leaves_nothing_and_the_next_run_works(
    tmp_path: Path, base: Path, samples: tuple[Sample, ...]
) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=samples, settings=ENDLESS)
    stop = threading.Event()

    def stop_in_mid_step() -> None:
        wait_for(lambda: updating(job))
        stop.set()

    stopper = threading.Thread(target=stop_in_mid_step)
    stopper.start()
    with pytest.raises(TrainingError, match="was stopped"):
        watch.run(job, timeout_s=TIMEOUT_S, stop=stop)
    stopper.join()
    assert trainers(job) == []
    assert not job.output.exists()
    again = toys.job(job.folder, base=base, samples=samples)
    assert checkpoint.problems(run(again).folder) == []


@pytest.mark.parametrize("point", ["checkpoint.written", "checkpoint.placed"])
def test_a_trainer_killed_while_it_writes_left_a_whole_checkpoint_or_none(
    tmp_path: Path, base: Path, samples: tuple[Sample, ...], point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=samples)
    monkeypatch.setenv(failpoints.VARIABLE, point)
    if point == "checkpoint.placed":
        result = run(job)
    else:
        with pytest.raises(TrainingError, match="signal SIGKILL"):
            run(job)
        assert not job.output.exists()
        monkeypatch.delenv(failpoints.VARIABLE)
        result = run(job)
    assert checkpoint.problems(result.folder) == []
    assert not list(job.folder.glob(".checkpoint.*"))


def test_a_disk_that_is_full_is_told_and_nothing_half_made_is_left(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    small = tmp_path / "small"
    small.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], capture_output=True, timeout=20)
    if made.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        job = toys.job(small / "job", base=base, samples=samples, settings={"method": "full", "learning_rate": 2e-5})
        with pytest.raises(StorageError, match="the checkpoint cannot be written") as told:
            run(job)
        assert "full" in told.value.hint
        assert not job.output.exists()
        assert not list(job.folder.glob(".checkpoint.*"))
        subprocess.run(["mount", "-o", "remount,size=50m", str(small)], check=True, timeout=20)
        assert checkpoint.problems(run(job).folder) == []
    finally:
        subprocess.run(["umount", "-l", str(small)], timeout=20)


def test_a_file_that_may_not_get_longer_is_told_too(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=samples)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        with pytest.raises(StorageError, match="the checkpoint cannot be written"):
            run(job)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(job.folder.glob(".checkpoint.*"))
    assert (job.folder / ERROR).exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_no_trainer_outlives_a_learner_that_was_killed(tmp_path: Path, base: Path, samples: tuple[Sample, ...], processes: int) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=samples, settings={**ENDLESS, "processes": processes})
    job.save()
    learner = (
        "import sys, threading; from pathlib import Path; from reef.training import watch; from reef.training.job import TrainingJob;"
        "watch.run(TrainingJob.load(Path(sys.argv[1])), timeout_s=100, stop=threading.Event())"
    )
    popen = subprocess.Popen([sys.executable, "-c", learner, str(job.folder)])
    try:
        wait_for(lambda: updating(job))
        assert len(trainers(job)) == (1 if processes == 1 else 1 + processes)
    finally:
        popen.kill()
        popen.wait()
    wait_for(lambda: not trainers(job), timeout_s=10.0)
