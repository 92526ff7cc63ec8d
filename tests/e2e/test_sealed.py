"""`reef verdict sealed` on a whole service: the learner runs the real Pi with both releases on tasks that nothing else is judged on."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import Service, serving, wait_for

TASKS = """
tasks:
  - id: day-1
    split: sealed
    prompt: Write the date 14 April 2021 to date.txt
    grader: {type: exact, file: date.txt, expected: "2021-04-14"}
  - id: day-2
    split: sealed
    prompt: Write the date 15 April 2021 to date.txt
    grader: {type: exact, file: date.txt, expected: "2021-04-15"}
  - {id: sum, prompt: Write the sum of 1 and 2 to sum.txt, grader: {type: exact, file: sum.txt, expected: "3"}}
"""
RULE = "\nWrite every date in ISO 8601 (YYYY-MM-DD).\n"


def reef(*arguments: str, service: Service) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "REEF_URL": service.url, "REEF_TOKEN": "", "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-m", "reef", *arguments], capture_output=True, text=True, timeout=150, env=environment)


def backend(name: str) -> tuple[str, ...]:
    return () if name == "local" else ("--set", f"execution.backend={name}", "--set", "execution.workers=2")


without_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'reef[ray]'")


@pytest.mark.parametrize("where", ["local", pytest.param("ray", marks=without_ray)])
def test_two_releases_are_compared_on_sealed_tasks_and_no_head_moves(tmp_path: Path, where: str) -> None:
    tasks = tmp_path / "tasks.yaml"
    tasks.write_text(TASKS)
    with serving(tmp_path, "--upstream", "rehearsal", "--set", f"evaluation.tasks={tasks}", *backend(where)) as service:
        wait_for(lambda: service.get("/reef/scenarios")["scenarios"], "the scenario to exist")
        files = service.get("/reef/harness")["files"]
        files = {**files, "AGENTS.md": files.get("AGENTS.md", "") + RULE}
        service.post("/reef/scenarios/default/import", {"files": files, "summary": "Dates"})
        done = reef("verdict", "sealed", "default", "--pairs", "3", service=service)
        assert done.returncode == 0, done.stderr + (service.state / "log" / "learner.log").read_text()
        assert "release 2 against 1, on the sealed tasks of default\neffect +1.00, between " in done.stdout
        assert "3 won, 0 lost, 0 alike" in done.stdout and "This was the first look at sealed tasks" in done.stdout
        [look] = service.get("/reef/scenarios/default/sealed")["looks"]
        whole = service.get(f"/reef/scenarios/default/sealed/{look['id']}")
        trials = whole["answer"]["verdict"]["trials"]
        assert {trial["task"] for trial in trials} <= {"day-1", "day-2"}
        assert sum(trial["tokens"] for trial in trials) > 0
        assert service.get("/reef/scenarios/default/releases")["head"] == 2
        assert "effect +1.00" in reef("verdict", "sealed", "default", "--list", service=service).stdout
        same = reef("verdict", "sealed", "default", "--step", "1", service=service)
        assert (same.returncode, "the same harness" in same.stderr) == (1, True)
