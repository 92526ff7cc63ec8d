"""The same trials, of the real Pi against the rehearsal model, in this process and on a Ray cluster of two nodes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reef.config import EvaluationConfig
from reef.errors import ConfigError
from reef.evaluation.evaluator import Evaluator
from reef.evaluation.execution import Execution, Job, LocalExecution
from reef.evaluation.ray_execution import RayExecution
from reef.gateway.auth import Auth
from reef.harness.tree import starter
from reef.learner.workplace import HarnessWorkplace
from reef.types import Decision, File, Origin, Setup, Task, Tree, TrialEnd
from tests.support.gateway import Service, service
from tests.support.rehearsal import rehearsing
from tests.support.service import wait_for

BACKENDS = [
    "local",
    pytest.param(
        "ray", marks=pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'reef[ray]'")
    ),
]
ray_only = BACKENDS[1].marks[0]  # type: ignore[attr-defined]
TASKS = tuple(
    Task(f"date-{day}", f"Write the date {day} April 2021 to date.txt", "exact", {"file": "date.txt", "expected": f"2021-04-{day}"})
    for day in (14, 15)
)
IN_VAIN = "97531"
"""Seconds that nothing else sleeps for: by this the test finds its own process."""


class Nodes:
    """A cluster that was started on loopback addresses, without a dashboard."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        self.cluster: Any = Cluster()
        self.head = self.add(1)
        self.address: str = self.cluster.address

    def add(self, cpus: int) -> Any:
        """One more node."""
        number = len(self.cluster.list_all_nodes()) + 2
        return self.cluster.add_node(
            num_cpus=cpus, node_ip_address=f"127.0.0.{number}", include_dashboard=False, object_store_memory=100 << 20
        )


@contextlib.contextmanager
def nodes() -> Iterator[Nodes]:
    started = Nodes()
    try:
        yield started
    finally:
        started.cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes() as two:
        two.add(1)
        two.cluster.wait_for_nodes(30)
        yield two


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Service]:
    """With the rehearsal model behind it, and the token of trials."""
    with rehearsing() as url, service(tmp_path, upstream=url, auth=Auth(token="secret", trial="trial")) as running:
        yield running


def workplace(gateway: Service, *, sandbox: str = "auto", remote: bool = True) -> HarnessWorkplace:
    """That of a machine on which there is no socket of the gateway's: a bridge to its address is made."""
    return HarnessWorkplace(
        adapter="pi",
        sandbox=sandbox,
        gateway_socket=Path("/nowhere/gateway.sock"),
        gateway_url="http://127.0.0.1:1",
        remote_url=gateway.url if remote else "",
        token="trial",
        model="rehearsal-1",
        judge_model="",
        timeout_s=60.0,
    )


@contextlib.contextmanager
def execution(backend: str, at: HarnessWorkplace, request: pytest.FixtureRequest) -> Iterator[Execution]:
    if backend == "local":
        tools = at.open()
        yield LocalExecution(runner=tools.runner, workers=2)
        return
    on_cluster = RayExecution(workplace=at, address=request.getfixturevalue("cluster").address, workers=2, timeout_s=90.0)
    try:
        yield on_cluster
    finally:
        on_cluster.close()


def job(task: Task, session: str, *, tree: Tree | None = None) -> Job:
    return Job(task=task, tree=tree or starter(), scenario="default", session=session, release=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_better_harness_wins_its_trials_wherever_they_run(gateway: Service, backend: str, request: pytest.FixtureRequest) -> None:
    better = {**starter(), "AGENTS.md": File(b"# How to work\n\nWrite every date in ISO 8601 (YYYY-MM-DD).\n")}
    config = EvaluationConfig(max_pairs=8, min_effect=0.2, max_seconds=120.0)
    with execution(backend, workplace(gateway), request) as trials:
        handler = signal.getsignal(signal.SIGTERM)
        verdict = Evaluator(execution=trials, tasks=TASKS, config=config, spent=0, rerun_wait_s=0.0).judge(
            scenario="default", candidate_id="c-1", candidate_tree=better, candidate_content_id="better",
            head_tree=starter(), head_content_id="head", head_step=1, seed=7,
        )  # fmt: skip
    assert (verdict.decision, verdict.effect) == (Decision.PROMOTE, 1.0), verdict.reason
    assert {(trial.side, trial.score) for trial in verdict.trials if trial.end is TrialEnd.SCORED} == {("candidate", 1.0), ("head", 0.0)}
    records = gateway.store.records("default", session=verdict.trials[0].session)
    assert records and {record.origin for record in records} == {Origin.TRIAL}
    assert signal.getsignal(signal.SIGTERM) == handler, "Ray would keep the learner from ending at once"


@ray_only
def test_both_nodes_work(gateway: Service, request: pytest.FixtureRequest) -> None:
    with execution("ray", workplace(gateway), request) as trials, ThreadPoolExecutor(2) as pool:
        seen: set[str] = set()

        def both() -> bool:
            running = [pool.submit(trials.run, job(TASKS[0], f"t-{number}"), stop=threading.Event()) for number in range(2)]
            seen.update(outcome.result().where.split("/")[1] for outcome in running)
            return len(seen) == 2

        wait_for(both, "both nodes to run a trial", within_s=60)


@ray_only
def test_what_cannot_work_on_a_worker_is_said(gateway: Service, request: pytest.FixtureRequest) -> None:
    with execution("ray", workplace(gateway, remote=False), request) as trials:
        outcome = trials.run(job(TASKS[0], "t"), stop=threading.Event())
        assert outcome.end is TrialEnd.INFRASTRUCTURE_FAULT and "the gateway is not on" in outcome.detail
    with execution("ray", workplace(gateway), request) as trials, pytest.raises(ConfigError, match="no none"):
        trials.run(job(Task("t", "x", "none"), "t"), stop=threading.Event())


@ray_only
def test_a_trial_that_nobody_wants_any_more_is_ended(gateway: Service, request: pytest.FixtureRequest) -> None:
    stop = threading.Event()
    task = Task("t", "x", "exact", {"expected": ""}, setup=Setup(command=("sleep", IN_VAIN), timeout_s=600))
    with execution("ray", workplace(gateway), request) as trials, ThreadPoolExecutor(1) as pool:
        running = pool.submit(trials.run, job(task, "t"), stop=stop)
        wait_for(sleeping, "the trial to begin", within_s=60)
        stop.set()
        assert running.result(30).end is TrialEnd.INFRASTRUCTURE_FAULT
        wait_for(lambda: not sleeping(), "its command to end")


@ray_only
def test_a_trial_whose_worker_is_lost_is_run_again(gateway: Service, tmp_path: Path) -> None:
    script = f"mkdir {tmp_path / 'once'} 2>/dev/null && exec sleep {IN_VAIN} || true"
    first = Task("date", TASKS[0].prompt, "exact", dict(TASKS[0].grader_options), setup=Setup(command=("sh", "-c", script), timeout_s=600))
    with nodes() as lone:
        lone.cluster.wait_for_nodes(30)
        config = EvaluationConfig(max_pairs=1, parallel=1, max_seconds=120.0)
        at = workplace(gateway, sandbox="none")
        trials = RayExecution(workplace=at, address=lone.address, workers=1, timeout_s=90.0)
        evaluator = Evaluator(execution=trials, tasks=[replace_split(first)], config=config, spent=0, rerun_wait_s=0.0, sealed=True)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                evaluator.judge, scenario="default", candidate_id="c-1", candidate_tree=starter(), candidate_content_id="b",
                head_tree=starter(), head_content_id="a", head_step=1, seed=1,
            )  # fmt: skip
            asleep = wait_for(sleeping, "the first trial to begin", within_s=60)
            os.kill(worker_of(asleep[0]), signal.SIGKILL)
            verdict = running.result(90)
            for pid in asleep:  # without a sandbox nothing ends what a lost worker had started
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        trials.close()
    lost, *again = verdict.trials
    assert (lost.end, lost.attempt) == (TrialEnd.INFRASTRUCTURE_FAULT, 0) and "the Ray worker was lost" in lost.detail
    assert [(trial.end, trial.attempt) for trial in again] == [(TrialEnd.SCORED, 1)] * 2


def replace_split(task: Task) -> Task:
    import dataclasses

    return dataclasses.replace(task, split="sealed")


def sleeping() -> list[int]:
    """The processes that sleep in vain."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if (folder / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", IN_VAIN.encode()]:
                    found.append(int(folder.name))
    return found


def worker_of(pid: int) -> int:
    """The parent of a process: without a sandbox, the worker that runs its trial."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_ray_is_not_loaded_by_what_does_without_it() -> None:
    import subprocess

    program = "import sys, reef.learner.harness_judge; print('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stdout == "False\n"
