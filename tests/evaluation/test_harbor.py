"""Harbor's task folders: what is taken of them, and a run of one in the real sandbox and, with a stand-in client, in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from reef.errors import ConfigError
from reef.evaluation import checking
from reef.evaluation.graders.harbor import HarborGrader
from reef.evaluation.tasks import grader_for, load_tasks
from reef.harness.sandbox import Sandbox, bubblewrap_problem
from reef.types import File

isolated = pytest.mark.skipif(bool(bubblewrap_problem()), reason="no bubblewrap")

TOML = """
version = "1.0"
[metadata]
author_name = "somebody"
difficulty = "easy"
tags = ["shell"]
[verifier]
timeout_sec = 30.0
env = {WANTED = "hello"}
[agent]
timeout_sec = 45.0
[environment]
build_timeout_sec = 100.0
cpus = 2
memory = "4G"
"""
TEST = """#!/bin/bash
# as Harbor's tests are written: absolute paths, a reward whatever the outcome
if [ "$(cat /app/hello.txt 2>/dev/null)" = "$WANTED" ] && [ -f /tests/more.txt ] && [ -f /app/given/in.txt ]; then
  echo "all well"; echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
PLAIN = "# a comment\nFROM ubuntu:24.04\nLABEL a=b\nWORKDIR /app\nCOPY given ./given\nCOPY in.txt \\\n  other.txt /app/more/\n"


def harbor(
    folder: Path, *, dockerfile: str | None = PLAIN, toml: str = TOML, test: str = TEST, solution: str = "echo hello > hello.txt"
) -> Path:
    files = {
        "task.toml": toml,
        "instruction.md": "Write hello into /app/hello.txt.\n",
        "environment/given/in.txt": "in",
        "environment/in.txt": "1",
        "environment/other.txt": "2",
        "tests/test.sh": test,
        "tests/more.txt": "",
        "solution/solve.sh": f"#!/bin/bash\nset -e\n{solution}\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    if dockerfile is not None:
        (folder / "environment" / "Dockerfile").write_text(dockerfile)
    return folder


def test_a_task_that_only_lays_files_down_needs_no_container(tmp_path: Path) -> None:
    (task,) = load_tasks(harbor(tmp_path / "say-hello"))
    assert (task.id, task.prompt, task.tags, task.grader) == ("say-hello", "Write hello into /app/hello.txt.", ("shell",), "harbor")
    assert dict(task.files) == {"given/in.txt": File(b"in"), "more/in.txt": File(b"1"), "more/other.txt": File(b"2")}
    assert (task.setup.workdir, task.setup.container, task.setup.run_timeout_s) == ("/app", None, 45.0)
    grader = grader_for(task)
    assert (
        isinstance(grader, HarborGrader) and grader.options.timeout_s == 30.0 and any("as Harbor's" in text for text in grader.never_told())
    )
    (bare,) = load_tasks(harbor(tmp_path / "bare", dockerfile=None))
    assert (bare.setup.workdir, sorted(bare.files)) == ("/app", ["given/in.txt", "in.txt", "other.txt"])


@isolated
def test_its_solution_is_graded_good_and_doing_nothing_bad_in_the_sandbox(tmp_path: Path) -> None:
    (task,) = load_tasks(harbor(tmp_path / "say-hello", dockerfile="FROM python:3.12-slim\nWORKDIR /app\nCOPY . .\n"))
    good, bad = checking.check(task, sandbox=Sandbox())
    assert (good.good, good.score, good.detail) == (True, 1.0, "reward 1: 'all well'")
    assert (bad.good, bad.score) == (False, 0.0)
    assert good.right and bad.right


@isolated
@pytest.mark.parametrize(
    ("test", "complaint"),
    [
        ("echo no > /logs/verifier/reward.txt", "reward.txt holds 'no'"),
        ("echo 1.5 > /logs/verifier/reward.txt", "the score 1.5"),
        ("echo nan > /logs/verifier/reward.txt", "the score nan"),
        ("echo pip failed >&2; exit 3", "ended with status 3 and left no reward: 'pip failed'"),
        ("ln -s /etc/passwd /logs/verifier/reward.txt", "left no reward"),
        ("echo '{}' > /logs/verifier/reward.json", "reward.json holds"),
    ],
)
def test_tests_that_leave_no_reward_score_nothing(tmp_path: Path, test: str, complaint: str) -> None:
    (task,) = load_tasks(harbor(tmp_path / "t", test=test))
    graded = list(checking.check(task, sandbox=Sandbox()))
    assert [item.score for item in graded] == [None, None]
    assert complaint in graded[0].detail


@isolated
def test_a_reward_may_be_json_and_the_agent_does_not_see_the_tests(tmp_path: Path) -> None:
    test = "cat /app/seen.txt >&2; echo '{\"reward\": 0.75}' > /logs/verifier/reward.json"
    (task,) = load_tasks(harbor(tmp_path / "t", test=test, solution="ls / | tr '\\n' ' ' > seen.txt; test ! -e /tests"))
    good, _ = checking.check(task, sandbox=Sandbox())
    assert good.score == 0.75


def test_without_isolation_it_is_refused_with_what_to_install(tmp_path: Path) -> None:
    (task,) = load_tasks(harbor(tmp_path / "t"))
    good, bad = checking.check(task, sandbox=Sandbox("none"))
    assert good.score is None and "a sandbox that does not isolate cannot give" in good.detail and bad.score is None


@pytest.mark.parametrize(
    ("dockerfile", "why"),
    [
        ("FROM ubuntu:24.04\nWORKDIR /app\nRUN apt-get update\n", "RUN in its Dockerfile"),
        ("FROM ghcr.io/somebody/image\nWORKDIR /app\n", "the image ghcr.io/somebody/image"),
        ("FROM ubuntu AS build\nFROM ubuntu\nWORKDIR /app\n", "a build in stages"),
        ("FROM ubuntu\nCOPY given /given\nWORKDIR /app\n", "a file outside the working folder: /given/in.txt"),
        ("FROM ubuntu\nWORKDIR /app\nCOPY --from=x given .\n", "COPY --from=x given ."),
        ("FROM ubuntu\nWORKDIR /app\nCOPY *.txt .\n", "COPY *.txt ."),
        ("FROM ubuntu\nWORKDIR /app\nADD http://example.org/x .\n", "ADD http://example.org/x ."),
        ("FROM ubuntu\nWORKDIR /app\nCOPY ../x .\n", "COPY ../x"),
        ("FROM ubuntu\nWORKDIR /app\nUSER nobody\n", "USER in its Dockerfile"),
        ("FROM ubuntu\n", "a working folder that its image decides"),
    ],
)
def test_any_other_needs_docker_and_says_why(tmp_path: Path, dockerfile: str, why: str) -> None:
    (task,) = load_tasks(harbor(tmp_path / "t", dockerfile=dockerfile))
    container = task.setup.container
    assert container is not None and why in container.why
    assert (container.build, container.cpus, container.memory_mb, container.network) == (
        str(tmp_path / "t" / "environment"),
        2,
        4096,
        False,
    )
    assert dict(task.files) == {}


def test_an_image_of_its_own_needs_docker(tmp_path: Path) -> None:
    (task,) = load_tasks(harbor(tmp_path / "t", toml=TOML + 'docker_image = "somebody/task:1"\nallow_internet = true\n'))
    assert task.setup.container is not None
    assert (task.setup.container.image, task.setup.container.build, task.setup.container.network) == ("somebody/task:1", "", True)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"task.toml": "[verifier\n"}, "task.toml is not valid TOML"),
        ({"task.toml": "[verifier]\ntimeout_sec = -1\n"}, "task.toml: verifier.timeout_sec"),
        ({"task.toml": '[verifier]\nenv = {KEY = "${OPENAI_API_KEY}"}\n'}, "verifier.env.KEY: takes a variable of this machine"),
        ({"task.toml": "[[steps]]\nname = 'one'\n"}, "steps: a task of several steps"),
        ({"instruction.md": " \n"}, "instruction.md is empty"),
        ({"instruction.md": None}, "cannot read"),
        ({"tests/test.sh": None}, "has no tests/test.sh"),
        ({"environment/docker-compose.yaml": "services: {}"}, "made of several containers"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_file_named(tmp_path: Path, change: dict[str, str | None], complaint: str) -> None:
    folder = harbor(tmp_path / "t")
    for path, text in change.items():
        (folder / path).unlink(missing_ok=True)
        if text is not None:
            (folder / path).write_text(text)
    with pytest.raises(ConfigError, match="t") as caught:
        load_tasks(folder)
    assert complaint in caught.value.message and str(folder) in caught.value.message


def test_a_folder_of_tasks_and_an_entry_of_a_set(tmp_path: Path) -> None:
    harbor(tmp_path / "set" / "one")
    harbor(tmp_path / "set" / "two words")
    assert [task.id for task in load_tasks(tmp_path / "set")] == ["one", "two-words"]
    path = tmp_path / "tasks.yaml"
    path.write_text(
        "tasks:\n  - {harbor: set/one, weight: 3, tags: [more], protected: true, split: sealed}\n  - {harbor: set/one, id: again}\n"
    )
    one, again = load_tasks(path)
    assert (one.weight, one.tags, one.protected, one.split, again.id) == (3, ("more", "shell"), True, "sealed", "again")
    with pytest.raises(ConfigError, match="holds no Harbor task"):
        load_tasks(tmp_path / "set" / "one" / "tests")
