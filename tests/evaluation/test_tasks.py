from pathlib import Path

import pytest

from reef import plugins
from reef.config import SplitsConfig
from reef.errors import ConfigError
from reef.evaluation import taskset
from reef.evaluation.graders import CommandGrader, ExactGrader, RegexGrader
from reef.evaluation.tasks import grader_for, load_tasks
from reef.types import File

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "tasks.md"

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


RICH = """
tasks:
  - id: project
    prompt: Build it.
    workspace: fixtures/project
    files:
      notes.txt: over it
      logo.png: {base64: AAEC}
      run.sh: {text: "#!/bin/sh", executable: true}
      big.txt: {from: fixtures/big.txt}
    setup: git init -q
    setup_timeout_s: 5
    grader: {type: files, files: {out.txt: "42"}}
    examples:
      good: {files: {out.txt: "42"}}
      bad: [I will not., {command: touch out.txt}]
    group: builds
    weight: 2.5
    split: heldout
    outcome: {session: s-1, score: 0.5}
"""


def test_a_task_can_bring_a_folder_files_of_any_kind_a_set_up_and_examples(tmp_path: Path) -> None:
    folder = tmp_path / "fixtures" / "project"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("below")
    (folder / "tool").write_bytes(b"\x7fELF")
    (folder / "tool").chmod(0o755)
    (tmp_path / "fixtures" / "big.txt").write_text("big")
    (task,) = load_tasks(written(tmp_path, RICH))
    assert dict(task.files) == {
        "notes.txt": "over it",
        "tool": File(b"\x7fELF", executable=True),
        "logo.png": File(b"\0\1\2"),
        "run.sh": File(b"#!/bin/sh", executable=True),
        "big.txt": File(b"big"),
    }
    assert (task.setup.command, task.setup.timeout_s) == (("sh", "-c", "git init -q"), 5)
    assert (task.group, task.weight, task.split, task.outcome["session"]) == ("builds", 2.5, "heldout", "s-1")
    good, refusal, touched = task.examples
    assert (good.good, dict(good.files)) == (True, {"out.txt": "42"})
    assert (refusal.good, refusal.answer) == (False, "I will not.")
    assert touched.command == ("sh", "-c", "touch out.txt")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("workspace: fixtures/project", "workspace: fixtures/none"), "task project: workspace: "),
        (("from: fixtures/big.txt", "from: nowhere.txt"), "task project: files.big.txt: "),
        (("base64: AAEC", "base64: '***'"), "task project: files.logo.png: "),
        (("base64: AAEC", "base64: AAEC, text: x"), "task project: files.logo.png"),
        (("weight: 2.5", "weight: 0"), "task project: weight"),
        (("weight: 2.5", "weight: .inf"), "task project: weight"),
        (("split: heldout", "split: secret"), "task project: split"),
        (('{out.txt: "42"}}\n    examples', "{out.txt: {is: x}}}\n    examples"), "task project: grader.files.out.txt"),
        (("good: {files: {out.txt", "good: {files: {../out.txt"), "task project: examples.good.files: the path '../out.txt'"),
        (("good: {files", "fine: {files"), "task project: examples.fine: unknown key"),
        (("setup: git init -q", "setup: []"), "task project: setup"),
    ],
)
def test_a_mistake_in_these_is_named_as_well(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    folder = tmp_path / "fixtures" / "project"
    folder.mkdir(parents=True)
    (tmp_path / "fixtures" / "big.txt").write_text("big")
    path = written(tmp_path, RICH.replace(*change))
    with pytest.raises(ConfigError) as caught:
        load_tasks(path)
    assert complaint in caught.value.message and str(path) in caught.value.message


def test_a_workspace_with_a_link_or_too_much_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "fixtures" / "project"
    folder.mkdir(parents=True)
    (tmp_path / "fixtures" / "big.txt").write_text("big")
    (folder / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="passwd is a link"):
        load_tasks(written(tmp_path, RICH))


def test_shares_split_a_set_and_what_a_task_says_wins(tmp_path: Path) -> None:
    text = "tasks:\n" + "".join(f"  - {{id: task-{n}, prompt: p, grader: {{type: exact, expected: x}}}}\n" for n in range(12))
    tasks = load_tasks(written(tmp_path, text), shares=SplitsConfig(heldout=0.3, sealed=0.1))
    assert {task.id: task.split for task in tasks if task.split != "search"} == {
        "task-1": "sealed",
        "task-3": "heldout",
        "task-5": "sealed",
    }
    assert all(task.split == "search" for task in load_tasks(written(tmp_path, text)))
    text = text.replace("id: task-3,", "id: task-3, split: search,")
    assert load_tasks(written(tmp_path, text), shares=SplitsConfig(heldout=0.3))[3].split == "search"


def test_every_grader_and_option_and_key_is_in_the_reference() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    for name in plugins.names("reef.graders"):
        row = next(line for line in text.partition("## Graders")[2].splitlines() if line.startswith(f"| `{name}` |"))
        options = plugins.load("reef.graders", name).Options.model_fields
        missing = [option for option in options if f"`{option.rstrip('_')}`" not in row]
        assert missing == [] or name == "harbor"
    keys = [name for model in (taskset._Entry, taskset._Harbor) for name in model.model_fields]
    assert [key for key in keys if f"`{key}`" not in text and f"`{key}: " not in text] == []
