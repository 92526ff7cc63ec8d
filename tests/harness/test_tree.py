from __future__ import annotations

import re
from pathlib import Path

import pytest

from reef.errors import InvalidTree, NotFound
from reef.harness import tree as trees
from reef.harness.tree import instructions, load, manifest, starter, validate
from reef.types import File, Tree


def a_tree(**files: str | bytes) -> Tree:
    base = {"harness.yaml": File(b"format: 1\nname: t\n"), "AGENTS.md": File(b"Rules.\n")}
    return base | {path: File(data.encode() if isinstance(data, str) else data) for path, data in files.items()}


def a_skill(name: str, *, called: str | None = None) -> str:
    return f"---\nname: {called or name}\ndescription: Use it.\n---\n\nBody.\n"


def test_the_starter_is_a_valid_harness_without_any_endpoint_or_key() -> None:
    tree = starter()
    validate(tree)
    assert manifest(tree).format == 1
    assert {"AGENTS.md", "harness.yaml", "skills/verify-before-done/SKILL.md"} == set(tree)
    everything = b"\n".join(file.data for file in tree.values())
    assert not re.search(rb"https?://|api[_-]?key|token", everything, re.IGNORECASE)


def test_a_folder_is_read_with_modes_and_without_git_and_backups(tmp_path: Path) -> None:
    (tmp_path / "harness.yaml").write_text("format: 1\nname: mine\n")
    (tmp_path / "skills" / "x").mkdir(parents=True)
    (tmp_path / "skills" / "x" / "SKILL.md").write_text(a_skill("x"))
    script = tmp_path / "skills" / "x" / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("")
    (tmp_path / "harness.yaml~").write_text("")
    tree = load(tmp_path)
    assert set(tree) == {"harness.yaml", "skills/x/SKILL.md", "skills/x/run.sh"}
    assert tree["skills/x/run.sh"].executable and not tree["harness.yaml"].executable


def test_a_link_in_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "harness.yaml").write_text("format: 1\nname: mine\n")
    (tmp_path / "AGENTS.md").symlink_to("/etc/passwd")
    with pytest.raises(InvalidTree, match=r"AGENTS\.md is a symbolic link"):
        load(tmp_path)


def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no folder"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "path", ["../x", "skills/../../x", "/etc/passwd", "skills\\x", "", "skills//SKILL.md", "skills/./x", ".git/config"]
)
def test_a_path_that_could_leave_the_tree_is_refused(path: str) -> None:
    with pytest.raises(InvalidTree):
        validate(a_tree(**{path: "x"}))


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"notes.txt": "x"}, "notes.txt has no place in a harness"),
        ({"skils/x/SKILL.md": "x"}, "has no place"),
        ({"AGENTS.md": b"\xff\xfe"}, "AGENTS.md is not UTF-8 text"),
        ({"AGENTS.md": "a\0b"}, "NUL byte"),
        ({"harness.yaml": "format: 2\nname: t\n"}, "harness.yaml: format"),
        ({"harness.yaml": "format: 1\nname: t\nmodel: gpt\n"}, "model: Extra inputs"),
        ({"harness.yaml": "a: [\n"}, "harness.yaml is not valid YAML"),
        ({"harness.yaml": "[" * 5000}, "harness.yaml is not valid YAML"),
        ({"harness.yaml": "- 1\n"}, "harness.yaml"),
        ({"skills/x/notes.md": "x"}, "skills/x/SKILL.md is missing"),
        ({"skills/SKILL.md": "x"}, "is not inside a skill"),
        ({"skills/x/SKILL.md": "no head\n"}, "has no front matter"),
        ({"skills/x/SKILL.md": a_skill("x", called="y")}, "calls itself 'y'"),
        ({"skills/X Y/SKILL.md": a_skill("X Y")}, "lower-case-with-hyphens"),
        ({"skills/x/SKILL.md": "---\nname: x\n---\n"}, "description"),
        ({"commands/a/b.md": "x"}, "is not a command"),
        ({"extensions/x.ts": "x"}, "which coding agent"),
        ({"settings/pi.json": "[]"}, "must hold an object"),
        ({"settings/pi.json": "{"}, "is not valid JSON"),
        ({"settings/pi.toml": ""}, "is not a settings file"),
        ({"memory/a.md": "x", "memory/A.md": "x"}, "differ only in case"),
        ({"memory/a": "x", "memory/a/b": "x"}, "file and a folder"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(files: dict[str, str | bytes], problem: str) -> None:
    with pytest.raises(InvalidTree, match=re.escape(problem)) as caught:
        validate(a_tree(**files))
    assert caught.value.hint


def test_a_tree_without_its_manifest_is_refused() -> None:
    with pytest.raises(InvalidTree, match=r"harness\.yaml is missing"):
        validate({"AGENTS.md": File(b"x")})


def test_the_bounds_hold() -> None:
    with pytest.raises(InvalidTree, match="more than 500 files"):
        validate(a_tree(**{f"memory/{n}.md": "x" for n in range(trees.MAX_FILES)}))
    with pytest.raises(InvalidTree, match="bytes"):
        validate(a_tree(**{"memory/a.md": b"x" * (trees.MAX_FILE_BYTES + 1)}))
    with pytest.raises(InvalidTree, match="the tree has"):
        validate(a_tree(**{f"memory/{n}.md": b"x" * trees.MAX_FILE_BYTES for n in range(9)}))


def test_notes_are_added_to_the_rules_in_order() -> None:
    tree = a_tree(**{"memory/b.md": "Second.\n", "memory/a.md": "First.\n"})
    assert instructions(tree) == "Rules.\n\n# Notes from earlier work\n\nFirst.\n\nSecond.\n"
    assert instructions({"harness.yaml": File(b"")}) == ""
