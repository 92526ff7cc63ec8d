"""Trials of the real Pi in real containers, where a Docker daemon answers. Their image is made of this machine's system."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reef.config import EvaluationConfig
from reef.evaluation.evaluator import Evaluator
from reef.evaluation.execution import LocalExecution
from reef.gateway.auth import Auth
from reef.harness import docker
from reef.harness.tree import starter
from reef.learner.workplace import HarnessWorkplace
from reef.types import Container, Decision, File, Setup, Task, TrialEnd
from tests.support.gateway import service
from tests.support.rehearsal import rehearsing

NO_DOCKER = docker.problem() if sys.platform == "linux" else "the image is made of a Linux"
pytestmark = pytest.mark.skipif(bool(NO_DOCKER), reason=f"no Docker here: {NO_DOCKER}")
SYSTEM = "bin lib lib64 usr/bin/dash usr/bin/sh usr/bin/bash usr/bin/env usr/bin/cat usr/bin/sleep usr/bin/tar usr/bin/mkdir usr/bin/rm"
SYSTEM += " usr/lib/x86_64-linux-gnu usr/lib64 etc/passwd etc/group etc/ld.so.cache etc/nsswitch.conf"


@pytest.fixture(params=["WORKDIR /app", "WORKDIR /"])
def image(request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"reef-test-{uuid.uuid4().hex[:8]}:1"
    there = [path for path in SYSTEM.split() if Path("/", path).exists()]
    packed = subprocess.Popen(["tar", "-C", "/", "-cf", "-", *there], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    subprocess.run(
        ["docker", "import", "--change", request.param, "-", name], stdin=packed.stdout, check=True, capture_output=True, timeout=120
    )
    yield name
    subprocess.run(["docker", "rmi", "--force", name], capture_output=True, timeout=60)


def test_a_better_harness_wins_its_trials_in_containers_without_a_network(image: str, tmp_path: Path) -> None:
    task = Task("date", "Write the date 14 April 2021 to date.txt", "exact", {"file": "date.txt", "expected": "2021-04-14"})
    task = replace(task, setup=Setup(container=Container(image=image, why="it says so")))
    better = {**starter(), "AGENTS.md": File(b"# How to work\n\nWrite every date in ISO 8601 (YYYY-MM-DD).\n")}
    with rehearsing() as url, service(tmp_path, upstream=url, auth=Auth(token="secret", trial="trial")) as gateway:
        workplace = HarnessWorkplace(
            adapter="pi", sandbox="auto", gateway_socket=Path("/nowhere/gateway.sock"), gateway_url="http://127.0.0.1:1",
            remote_url=gateway.url, token="trial", model="rehearsal-1", judge_model="", timeout_s=60.0,
        )  # fmt: skip
        trials = LocalExecution(runner=workplace.open().runner, workers=2)
        config = EvaluationConfig(max_pairs=8, min_effect=0.2, max_seconds=200.0)
        verdict = Evaluator(execution=trials, tasks=[task], config=config, spent=0, rerun_wait_s=0.0).judge(
            scenario="default", candidate_id="c-1", candidate_tree=better, candidate_content_id="better",
            head_tree=starter(), head_content_id="head", head_step=1, seed=7,
        )  # fmt: skip
    assert (verdict.decision, verdict.effect) == (Decision.PROMOTE, 1.0), (verdict.reason, verdict.trials)
    assert {(trial.side, trial.score) for trial in verdict.trials if trial.end is TrialEnd.SCORED} == {("candidate", 1.0), ("head", 0.0)}
    left = subprocess.run(["docker", "ps", "--all", "--quiet", "--filter", f"ancestor={image}"], capture_output=True, text=True, timeout=60)
    assert left.stdout == ""
