from pathlib import Path

import pytest

from reef.errors import ConfigError
from reef.evaluation.graders import CommandGrader, ExactGrader, RegexGrader
from reef.evaluation.tasks import grader_for, load_tasks

GOOD = """
tasks:
  - id: greeting
    prompt: Write hello into hello.txt.
    files: {notes/README.md: "An empty project."}
    grader: {type: exact, file: hello.txt, expected: hello}
    tags: [smoke]
    protected: true
  - id: total
    prompt: What is the total?
    grader: {type: regex, pattern: "^total: 42$", multiline: true}
  - id: suite
    prompt: Make the tests pass.
    grader: {type: command, command: "python3 check.py", files: {check.py: "print(0.5)"}, score: last_line}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tasks.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_task_set_is_read_with_its_graders(tmp_path: Path) -> None:
    greeting, total, suite = load_tasks(written(tmp_path, GOOD))
    assert (greeting.id, greeting.protected, greeting.tags, greeting.grader) == ("greeting", True, ("smoke",), "exact")
    assert dict(greeting.grader_options) == {"file": "hello.txt", "expected": "hello"}
    assert dict(greeting.files) == {"notes/README.md": "An empty project."}
    assert [type(grader_for(task)) for task in (greeting, total, suite)] == [ExactGrader, RegexGrader, CommandGrader]
    assert grader_for(suite).options.command == ("sh", "-c", "python3 check.py")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("id: total", "id: greeting"), "the id greeting is given twice"),
        (("id: total", "id: ../x"), "task ../x: id"),
        (("prompt: What is the total?", "promt: typo"), "task total: prompt: Field required; promt: unknown key"),
        (("notes/README.md", "../README.md"), "task greeting: files: the path '../README.md' has the part '..'"),
        (("type: regex", "type: nope"), "task total: grader.type: there is no nope"),
        (("type: regex", "type: 'reef.types:Task'"), "is not a Grader"),
        (("{type: regex, pattern", "{pattern"), "task total: grader: needs a type"),
        (('"^total: 42$"', '"("'), "task total: grader.pattern: not a regular expression"),
        (("multiline: true", "multilin: true"), "task total: grader.multilin: unknown key"),
        (("expected: hello", "expected: 5"), "task greeting: grader.expected"),
        (("file: hello.txt", "file: /etc/passwd"), "task greeting: grader.file: the path '/etc/passwd' is absolute"),
        (("score: last_line", "score: best"), "task suite: grader.score"),
        (("tasks:", "task:"), "must hold one key, tasks"),
        (("protected: true", "protected: [true"), "is not valid YAML"),
    ],
)
def test_a_mistake_is_named_with_file_task_and_key(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    path = written(tmp_path, GOOD.replace(*change))
    with pytest.raises(ConfigError) as caught:
        load_tasks(path)
    assert complaint in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "tasks: []", "tasks: {}", "- id: x", "tasks: [5]", "\xff"])
def test_a_file_that_is_no_task_set_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load_tasks(written(tmp_path, text))
    with pytest.raises(ConfigError, match="cannot read"):
        load_tasks(tmp_path / "missing.yaml")
