"""A Harbor task, run by the real Pi in the real sandbox and graded by its own tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reef.evaluation.tasks import grader_for, load_tasks
from reef.harness.install import Installed
from reef.harness.sandbox import bubblewrap_problem
from reef.harness.tree import starter
from tests.harness.test_episode import a_runner

if TYPE_CHECKING:
    from tests.harness.conftest import MiniGateway


@pytest.mark.skipif(bool(bubblewrap_problem()), reason="no bubblewrap")
@pytest.mark.parametrize(("command", "score"), [("tr a-z A-Z < /app/in.txt > /app/out.txt", 1.0), ("true", 0.0)])
def test_what_pi_leaves_in_app_is_graded(
    gateway: MiniGateway, gateway_socket: Path, pi: Installed, tmp_path: Path, command: str, score: float
) -> None:
    folder = tmp_path / "upper"
    for path, text in {
        "task.toml": "[agent]\ntimeout_sec = 60\n",
        "instruction.md": "Write /app/in.txt in capitals to /app/out.txt",
        "environment/in.txt": "coral",
        "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nCOPY in.txt .\n",
        "tests/test.sh": "grep -qx CORAL /app/out.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (task,) = load_tasks(folder)
    gateway.answers = [("bash", {"command": command}), "done"]
    runner = a_runner(gateway, gateway_socket, pi)
    with runner.run(starter(), prompt=task.prompt, files=task.files, scenario="s", session="t", release=None, setup=task.setup) as episode:
        assert episode.fault is None
        graded = grader_for(task).grade(task=task, workspace=episode.workspace, answer=episode.answer, run_command=episode.run_command)
    assert graded.value == score
