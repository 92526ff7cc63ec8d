"""The real Pi, headless, in the sandbox that this machine has and in none, against a scripted model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from adapters.pi import PiAdapter
from reef.errors import InvalidTree
from reef.harness.bounds import Bounds
from reef.harness.episode import EpisodeRunner
from reef.harness.install import Installed
from reef.harness.sandbox import Sandbox, bubblewrap_problem
from reef.harness.tree import starter
from reef.types import File, Setup

if TYPE_CHECKING:
    from tests.harness.conftest import MiniGateway

KINDS = [pytest.param("bubblewrap", marks=pytest.mark.skipif(bool(bubblewrap_problem()), reason="no bubblewrap")), "none"]


def a_runner(gateway: MiniGateway, socket: Path, pi: Installed, *, kind: str = "auto", timeout_s: float = 60) -> EpisodeRunner:
    return EpisodeRunner(
        adapter=PiAdapter(),
        installed=pi,
        sandbox=Sandbox(kind),
        gateway_socket=socket,
        gateway_url=gateway.url,
        token="trial-token",
        model="m",
        timeout_s=timeout_s,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_pi_does_a_task_with_tools_and_says_who_it_is(gateway: MiniGateway, gateway_socket: Path, pi: Installed, kind: str) -> None:
    gateway.token = "trial-token"
    gateway.answers = [("bash", {"command": "cat given/in.txt > out.txt; pwd >> out.txt"}), "All done."]
    runner = a_runner(gateway, gateway_socket, pi, kind=kind)
    with runner.run(starter(), prompt="- copy it", files={"given/in.txt": "hello\n"}, scenario="demo", session="t-1", release=7) as result:
        assert (result.answer, result.fault, result.returncode) == ("All done.", None, 0)
        assert (result.workspace / "out.txt").read_text().startswith("hello\n")
        if kind == "bubblewrap":
            assert (result.workspace / "out.txt").read_text() == "hello\n/reef/work\n"
        checked = result.run_command(["sh", "-c", "cat out.txt; env"])
        assert checked.stdout.startswith("hello\n") and "trial-token" not in checked.stdout
    assert not result.workspace.exists()
    headers, body = gateway.called("/v1/chat/completions")[0]
    assert headers["authorization"] == "Bearer trial-token"
    assert [headers[f"x-reef-{name}"] for name in ("scenario", "session", "release")] == ["demo", "t-1", "7"]
    assert "How to work" in body["messages"][0]["content"] and "verify-before-done" in body["messages"][0]["content"]
    assert body["messages"][1]["content"][0]["text"] == "- copy it"


def test_a_candidate_says_no_release(gateway: MiniGateway, gateway_socket: Path, pi: Installed) -> None:
    with a_runner(gateway, gateway_socket, pi).run(starter(), prompt="x", files={}, scenario="s", session="t", release=None) as result:
        assert (result.answer, result.fault) == ("done", None)
    assert "x-reef-release" not in gateway.called("/v1/chat/completions")[0][0]


def test_a_model_that_refuses_everybody_is_not_the_harness_fault(gateway: MiniGateway, gateway_socket: Path, pi: Installed) -> None:
    gateway.token = "another"
    with a_runner(gateway, gateway_socket, pi).run(starter(), prompt="x", files={}, scenario="s", session="t", release=None) as result:
        assert result.fault == "infrastructure"
        assert result.detail.startswith("401")


def test_an_extension_that_does_not_load_is_the_harness_fault(gateway: MiniGateway, gateway_socket: Path, pi: Installed) -> None:
    tree = {**starter(), "extensions/pi/broken.ts": File(b"export default () => { throw new Error('broken here') }\n")}
    with a_runner(gateway, gateway_socket, pi).run(tree, prompt="x", files={}, scenario="s", session="t", release=None) as result:
        assert result.fault == "harness"
        assert "broken.ts" in result.detail


def test_a_run_that_does_not_end_is_ended(gateway: MiniGateway, gateway_socket: Path, pi: Installed) -> None:
    gateway.answers = [("bash", {"command": "sleep 1000"}), "never said"]
    runner = a_runner(gateway, gateway_socket, pi, timeout_s=3)
    with runner.run(starter(), prompt="x", files={}, scenario="s", session="t", release=None) as result:
        assert result.fault == "harness"
        assert "not finished after 3 s" in result.detail
    assert result.duration_s < 10


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_that_fills_the_machine_is_ended_and_that_is_the_harness_fault(
    gateway: MiniGateway, gateway_socket: Path, pi: Installed, kind: str
) -> None:
    gateway.answers = [("bash", {"command": "for i in $(seq 300); do sleep 1000 & done; wait"}), "never said"]
    bounds = Bounds(memory_bytes=1 << 40, processes=150)
    runner = replace(a_runner(gateway, gateway_socket, pi), sandbox=Sandbox(kind, bounds=bounds))
    with runner.run(starter(), prompt="x", files={}, scenario="s", session="t", release=None) as result:
        assert result.fault == "harness"
        assert result.detail.startswith("ended since it took") and "150 are allowed" in result.detail
        assert result.run_command(["echo", "still there"]).stdout == "still there\n"


def test_a_task_file_may_not_leave_the_workspace(gateway: MiniGateway, gateway_socket: Path, pi: Installed) -> None:
    runner = a_runner(gateway, gateway_socket, pi)
    with pytest.raises(InvalidTree), runner.run(starter(), prompt="x", files={"../x": ""}, scenario="s", session="t", release=None):
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_set_up_command_runs_before_the_agent_in_its_workspace(
    gateway: MiniGateway, gateway_socket: Path, pi: Installed, kind: str
) -> None:
    gateway.answers = [("bash", {"command": "cat made.txt > out.txt"}), "done"]
    setup = Setup(command=("sh", "-c", "cat given.txt > made.txt; env >> env.txt"))
    files = {"given.txt": "hi", "run.sh": File(b"#!/bin/sh\necho ran\n", executable=True)}
    runner = a_runner(gateway, gateway_socket, pi, kind=kind)
    with runner.run(starter(), prompt="x", files=files, scenario="s", session="t", release=None, setup=setup) as result:
        assert (result.fault, (result.workspace / "out.txt").read_text()) == (None, "hi")
        assert "trial-token" not in (result.workspace / "env.txt").read_text()
        assert result.run_command(["./run.sh"]).stdout == "ran\n"


def test_a_set_up_that_fails_is_no_fault_of_the_harness_and_the_agent_is_not_run(
    gateway: MiniGateway, gateway_socket: Path, pi: Installed
) -> None:
    runner = a_runner(gateway, gateway_socket, pi)
    for setup, detail in (
        (Setup(command=("sh", "-c", "echo no such thing >&2; exit 3")), "the set-up command ended with status 3: no such thing"),
        (Setup(command=("sleep", "60"), timeout_s=0.2), "the set-up command did not end within 0.2 s"),
    ):
        with runner.run(starter(), prompt="x", files={}, scenario="s", session="t", release=None, setup=setup) as result:
            assert (result.fault, result.detail) == ("infrastructure", detail)
    assert gateway.called("/v1/chat/completions") == []


@pytest.mark.skipif(bool(bubblewrap_problem()), reason="no bubblewrap")
def test_the_workspace_is_where_the_task_says_and_a_check_sees_further_folders(
    gateway: MiniGateway, gateway_socket: Path, pi: Installed, tmp_path: Path
) -> None:
    gateway.answers = [("bash", {"command": "pwd > /app/out.txt; ls /tests >> /app/out.txt 2>&1"}), "done"]
    (tmp_path / "tests").mkdir()
    runner = a_runner(gateway, gateway_socket, pi)
    setup = Setup(workdir="/app")
    with runner.run(starter(), prompt="x", files={}, scenario="s", session="t", release=None, setup=setup) as result:
        seen = (result.workspace / "out.txt").read_text()
        assert seen.startswith("/app\n") and "No such file" in seen
        assert result.run_command(["sh", "-c", "cp out.txt /tests/"], folders={"/tests": tmp_path / "tests"}).returncode == 0
        assert (tmp_path / "tests" / "out.txt").read_text() == seen
