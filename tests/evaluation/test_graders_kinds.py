"""The graders beside `exact`, `regex` and `command`: what each scores, and that none of them answers for its own faults with a 0."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from episodes import command_runner
from pydantic import ValidationError

from reef.errors import ConfigError, GraderFault
from reef.evaluation.graders import Grader, Score
from reef.evaluation.graders.files import FilesGrader
from reef.evaluation.graders.function import PythonGrader
from reef.evaluation.graders.json_schema import JsonSchemaGrader
from reef.types import Task

SCHEMA = {"type": "object", "required": ["total"], "properties": {"total": {"type": "integer", "minimum": 1}}, "maxProperties": 1}


def score(grader: Grader, workspace: Path, answer: str = "") -> Score:
    task = Task(id="t", prompt="p", grader="x")
    return grader.grade(task=task, workspace=workspace, answer=answer, run_command=command_runner(workspace))


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ('{"total": 3}', 1.0),
        ('Here it is:\n```json\n{"total": 3}\n```\nDone.', 1.0),
        ('{"total": 0}', 0.0),
        ('{"total": 3, "more": 1}', 0.0),
        ("three", 0.0),
        ("", 0.0),
        ('{"total": NaN}', 0.0),
        ("[" * 100_000, 0.0),
    ],
)
def test_json_schema_takes_json_that_fits(tmp_path: Path, answer: str, value: float) -> None:
    assert score(JsonSchemaGrader({"schema": SCHEMA}), tmp_path, answer).value == value
    (tmp_path / "out.json").write_text(answer)
    assert score(JsonSchemaGrader({"schema": SCHEMA, "file": "out.json"}), tmp_path).value == value


def test_json_schema_says_where_it_does_not_fit_and_fetches_nothing(tmp_path: Path) -> None:
    assert score(JsonSchemaGrader({"schema": SCHEMA}), tmp_path, '{"total": "x"}').detail.startswith("$.total: ")
    with pytest.raises(ValidationError, match="not a JSON schema"):
        JsonSchemaGrader({"schema": {"type": "nonsense"}})
    elsewhere = JsonSchemaGrader({"schema": {"$ref": "http://127.0.0.1:1/schema.json"}})
    with pytest.raises(ConfigError, match="does not hold"):
        score(elsewhere, tmp_path, "{}")


def test_files_compares_content_patterns_digests_and_absence(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "out.txt").write_text("42\n")
    (tmp_path / "src" / "a.py").write_text("import this\n")
    (tmp_path / "src" / "deep" / "b.py").write_text("import that\n")
    (tmp_path / "data.bin").write_bytes(b"\0\1")
    digest = hashlib.sha256(b"\0\1").hexdigest()
    good: dict[str, Any] = {
        "out.txt": "42",
        "src/*.py": {"count": 1},
        "src/**/*.py": {"count": 2, "matches": "^import"},
        "data.bin": {"sha256": digest},
        "tmp.txt": {"absent": True},
        "*.log": {"absent": True},
    }
    assert score(FilesGrader({"files": good}), tmp_path) == Score(1.0, "all 6 as expected")
    for path, expected, detail in (
        ("out.txt", "43", "out.txt: got '42', expected '43'"),
        ("src/**/*.py", {"contains": "this"}, "src/deep/b.py: does not contain 'this'"),
        ("data.bin", {"sha256": "0" * 64}, "data.bin: has other content"),
        ("out.txt", {"absent": True}, "out.txt is there"),
        ("nothing.txt", {}, "nothing.txt is not there"),
        ("src/*.py", {"count": 2}, "1 files at src/*.py, expected 2"),
    ):
        assert score(FilesGrader({"files": {path: expected}}), tmp_path) == Score(0.0, detail)
    half = FilesGrader({"files": {"out.txt": "42", "nothing.txt": {}}, "partial": True})
    assert score(half, tmp_path) == Score(0.5, "nothing.txt is not there")


def test_files_follows_no_link_out_of_the_workspace(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "work", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    (outside / "out.txt").write_text("42")
    (workspace / "out.txt").symlink_to(outside / "out.txt")
    (workspace / "folder").symlink_to(outside)
    os.mkfifo(workspace / "pipe")
    for path in ("out.txt", "*.txt", "folder/out.txt", "**/out.txt", "pipe"):
        assert score(FilesGrader({"files": {path: "42"}}), workspace).value == 0.0


@pytest.mark.parametrize(
    "wrong",
    [{}, {"files": {}}, {"files": {"a": {"absent": True, "equals": "x"}}}, {"files": {"../a": "x"}}, {"files": {"a": {"matches": "("}}}],
)
def test_wrong_expectations_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FilesGrader(wrong)


CHECKS = """
import os, sys, time

def words(workspace, answer, at_least=1):
    print("noise on standard output")
    return min(1.0, len(answer.split()) / at_least), "counted"

def there(workspace, answer):
    return (workspace / "out.txt").exists()

def wrong(workspace, answer, value):
    return float(value)

def broken(workspace, answer):
    raise FileNotFoundError("out.json")

def slow(workspace, answer):
    time.sleep(60)

def leaves(workspace, answer):
    sys.exit(0)

def env(workspace, answer):
    return "SECRET_TOKEN" not in os.environ
"""


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "my_checks.py").write_text(CHECKS)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    workspace = tmp_path / "work"
    workspace.mkdir()
    return workspace


def python(name: str, **options: Any) -> PythonGrader:
    return PythonGrader({"function": f"my_checks:{name}", **options})


def test_a_python_function_scores_in_a_process_without_our_secrets(checks: Path) -> None:
    assert score(python("words", arguments={"at_least": 4}), checks, "one two") == Score(0.5, "counted")
    assert score(python("there"), checks).value == 0.0
    (checks / "out.txt").write_text("")
    assert score(python("there"), checks) == Score(1.0, "scored 1")
    assert score(python("env"), checks).value == 1.0


@pytest.mark.parametrize("value", ["nan", "inf", "1.01", "-0.1", "x"])
def test_a_python_function_that_gives_no_score_is_an_error_of_the_config(checks: Path, value: str) -> None:
    with pytest.raises(ConfigError):
        score(python("wrong", arguments={"value": value}), checks)


def test_what_a_python_function_does_wrong_is_no_zero(checks: Path) -> None:
    with pytest.raises(ConfigError, match=r"FileNotFoundError: out\.json"):
        score(python("broken"), checks)
    with pytest.raises(ConfigError):
        score(python("leaves"), checks)
    with pytest.raises(ConfigError, match="my_checks:missing failed"):
        score(python("missing"), checks)
    with pytest.raises(GraderFault, match=r"did not end within 0\.5 s"):
        score(python("slow", timeout_s=0.5), checks)
    with pytest.raises(ValidationError):
        PythonGrader({"function": "os.system"})
