import math
import os
from pathlib import Path
from typing import Any

import pytest
from episodes import command_runner

from reef.errors import ConfigError
from reef.evaluation.graders import CommandGrader, ExactGrader, Grader, RegexGrader, Score
from reef.types import Task


def score(grader: Grader, workspace: Path, answer: str = "") -> Score:
    task = Task(id="t", prompt="p", grader="x")
    return grader.grade(task=task, workspace=workspace, answer=answer, run_command=command_runner(workspace))


def test_exact_compares_the_answer_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("42\n")
    assert score(ExactGrader({"expected": "42"}), tmp_path, " 42 ").value == 1.0
    assert score(ExactGrader({"expected": "42", "strip": False}), tmp_path, "42 ").value == 0.0
    assert score(ExactGrader({"expected": "42", "file": "out.txt"}), tmp_path, "no").value == 1.0
    assert score(ExactGrader({"expected": "43", "file": "out.txt"}), tmp_path).detail == "got '42', expected '43'"
    assert score(ExactGrader({"expected": "42", "file": "none.txt"}), tmp_path) == Score(0.0, "none.txt is not there")


def test_regex_searches_the_answer_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\nTotal: 42\n")
    assert score(RegexGrader({"pattern": "^total: \\d+$", "file": "log", "ignore_case": True, "multiline": True}), tmp_path).value == 1.0
    assert score(RegexGrader({"pattern": "^total"}), tmp_path, "in total").value == 0.0
    assert score(RegexGrader({"pattern": "sorry", "absent": True}), tmp_path, "done").value == 1.0
    assert score(RegexGrader({"pattern": "sorry", "absent": True}), tmp_path, "sorry").value == 0.0


def test_command_scores_by_exit_status_or_last_line(tmp_path: Path) -> None:
    assert score(CommandGrader({"command": ["true"]}), tmp_path).value == 1.0
    assert score(CommandGrader({"command": "echo no such thing >&2; exit 3"}), tmp_path) == Score(0.0, "exit status 3: 'no such thing'")
    assert score(CommandGrader({"command": "echo running; echo 0.75", "score": "last_line"}), tmp_path).value == 0.75
    assert score(CommandGrader({"command": "echo 1; exit 1", "score": "last_line"}), tmp_path).value == 0.0
    assert "did not end" in score(CommandGrader({"command": "sleep 60", "timeout_s": 0.1}), tmp_path).detail


@pytest.mark.parametrize("printed", ["nan", "inf", "1.5", "-0.1", "fine", ""])
def test_a_score_that_is_no_number_from_0_to_1_is_an_error_of_the_grader(tmp_path: Path, printed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        score(CommandGrader({"command": ["echo", printed], "score": "last_line"}), tmp_path)
    assert caught.value.hint
    with pytest.raises(ConfigError):
        Score(math.nan, "")


def test_files_of_a_check_replace_what_the_agent_left_in_their_place(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "work", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    (outside / "check.sh").write_text("untouched")
    (workspace / "tests").symlink_to(outside)
    (workspace / "run.sh").mkdir()
    (workspace / "run.sh" / "x").write_text("")
    options: dict[str, Any] = {"command": "sh run.sh", "files": {"tests/check.sh": "exit 0", "run.sh": "sh tests/check.sh"}}
    assert score(CommandGrader(options), workspace).value == 1.0
    assert (outside / "check.sh").read_text() == "untouched"


def test_what_an_agent_planted_is_not_read_outside_the_workspace_and_does_not_hang(tmp_path: Path) -> None:
    workspace, secret = tmp_path / "work", tmp_path / "secret"
    workspace.mkdir()
    secret.mkdir()
    (secret / "out.txt").write_text("42")
    (workspace / "out.txt").symlink_to(secret / "out.txt")
    (workspace / "folder").symlink_to(secret)
    os.mkfifo(workspace / "pipe")
    (workspace / "directory").mkdir()
    (workspace / "circle").symlink_to("circle")
    for file in ("out.txt", "circle/out.txt", "folder/out.txt", "pipe", "directory"):
        assert score(ExactGrader({"expected": "42", "file": file}), workspace).detail == f"{file} is not there"
