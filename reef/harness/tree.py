"""Harness trees: what files a harness is made of, and the rules they keep.

A harness is plain UTF-8 text. ``AGENTS.md`` holds the rules, ``skills/<name>/SKILL.md`` what is read when it is needed, ``commands/*.md``
prompts a person calls by name, ``memory/*.md`` notes that are added to the rules, ``extensions/<adapter>/`` and ``settings/<adapter>.json``
what only one coding agent understands, and ``harness.yaml`` says which format this is. Endpoint, model and key are never in it.
"""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reef.artifacts.tree import check_paths
from reef.errors import InvalidTree, NotFound
from reef.types import File, Tree

MAX_FILES = 500
MAX_FILE_BYTES = 1 << 20
MAX_TREE_BYTES = 8 << 20
MANIFEST = "harness.yaml"
RULES = "AGENTS.md"
SINGLE_FILES = (MANIFEST, RULES, "README.md")
FOLDERS = ("skills", "commands", "extensions", "settings", "memory")

_Model = TypeVar("_Model", bound=BaseModel)
_SKILL_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


class Manifest(BaseModel):
    """``harness.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = Field(description="Version of the tree's layout.")
    name: str = Field(min_length=1, max_length=100)
    description: str = Field("", max_length=1000)


class SkillHead(BaseModel):
    """The front matter of a SKILL.md: coding agents list skills by it. Keys of their own are kept."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(max_length=64)
    description: str = Field(min_length=1, max_length=1024)


def load(folder: Path) -> Tree:
    """Read a harness from a folder and check it. Links, ``.git`` and editors' left-overs (``*~``, ``.DS_Store``) are not part of it.

    Raises:
        NotFound: there is no such folder.
        InvalidTree: what is in it is not a harness.
    """
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}", hint="Give the folder that holds harness.yaml.")
    tree: dict[str, File] = {}
    for parent, names, file_names in os.walk(folder):
        names[:] = sorted(name for name in names if name != ".git")
        for name in sorted(file_names):
            path = Path(parent, name)
            if name.endswith("~") or name == ".DS_Store":
                continue
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink():
                raise InvalidTree(f"{relative} is a symbolic link", hint="Put the file itself into the tree.")
            _check_bounds(relative, size_bytes=path.stat().st_size, files=len(tree) + 1)
            tree[relative] = File(path.read_bytes(), executable=os.access(path, os.X_OK))
    validate(tree)
    return tree


def starter() -> Tree:
    """The tree that release 1 of a new scenario is made of."""
    tree = dict(_walk(files("harness_templates") / "starter", prefix=""))
    validate(tree)
    return tree


def _walk(folder: Traversable, *, prefix: str) -> list[tuple[str, File]]:
    found: list[tuple[str, File]] = []
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.name == "__pycache__":
            continue
        if item.is_dir():
            found += _walk(item, prefix=f"{prefix}{item.name}/")
        else:
            found.append((f"{prefix}{item.name}", File(item.read_bytes())))
    return found


def validate(tree: Tree) -> None:
    """Check that ``tree`` may be stored and served.

    Raises:
        InvalidTree: a path is unsafe or has no place in a harness, a file is not text or too large, or harness.yaml, a skill or a
            settings file is malformed. The message names the file.
    """
    check_paths(tree)
    total = 0
    seen: dict[str, str] = {}
    for path in sorted(tree):
        _check_place(path)
        size_bytes = len(tree[path].data)
        _check_bounds(path, size_bytes=size_bytes, files=len(tree))
        total += size_bytes
        text(tree, path)
        # macOS would write both into one file, and the digests the client checks would not match
        twin = seen.setdefault(path.casefold(), path)
        if twin != path:
            raise InvalidTree(f"{twin} and {path} differ only in case", hint="Rename one: some file systems cannot hold both.")
    if total > MAX_TREE_BYTES:
        raise InvalidTree(f"the tree has {total} bytes, {MAX_TREE_BYTES} are allowed", hint="Keep large material outside the harness.")
    manifest(tree)
    for path in tree:
        _check_content(tree, path)


def manifest(tree: Tree) -> Manifest:
    """The checked content of harness.yaml."""
    if MANIFEST not in tree:
        raise InvalidTree(f"{MANIFEST} is missing", hint="Add one with `format: 1` and a `name`.")
    return _parse(Manifest, _yaml(text(tree, MANIFEST), MANIFEST), MANIFEST)


def text(tree: Tree, path: str) -> str:
    """The file at ``path`` as text."""
    data = tree[path].data
    try:
        decoded = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidTree(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}", hint="A harness holds text only.") from None
    if "\0" in decoded:
        raise InvalidTree(f"{path} holds a NUL byte", hint="A harness holds text only.")
    return decoded


def instructions(tree: Tree) -> str:
    """The rules followed by the notes in ``memory/``: what every adapter puts where its agent reads standing instructions."""
    parts = [text(tree, RULES).rstrip()] if RULES in tree else []
    notes = [text(tree, path).strip() for path in sorted(tree) if path.startswith("memory/") and path.endswith(".md")]
    if notes:
        parts += ["# Notes from earlier work", *notes]
    return "\n\n".join(part for part in parts if part) + "\n" if parts else ""


def _check_place(path: str) -> None:
    first, _, rest = path.partition("/")
    if (first in FOLDERS and rest) or path in SINGLE_FILES:
        return
    raise InvalidTree(
        f"{path} has no place in a harness",
        hint=f"Allowed are {', '.join(SINGLE_FILES)} and files in {', '.join(f'{name}/' for name in FOLDERS)}.",
    )


def _check_bounds(path: str, *, size_bytes: int, files: int) -> None:
    if files > MAX_FILES:
        raise InvalidTree(f"the tree has more than {MAX_FILES} files", hint="Keep large material outside the harness.")
    if size_bytes > MAX_FILE_BYTES:
        raise InvalidTree(f"{path} has {size_bytes} bytes, {MAX_FILE_BYTES} are allowed", hint="Split it, or keep it outside the harness.")


def _check_content(tree: Tree, path: str) -> None:
    parts = path.split("/")
    if parts[0] == "skills":
        if len(parts) < 3:
            raise InvalidTree(f"{path} is not inside a skill", hint="Put it at skills/<name>/SKILL.md.")
        _check_skill(tree, parts[1])
    elif parts[0] == "commands" and (len(parts) != 2 or not path.endswith(".md")):
        raise InvalidTree(f"{path} is not a command", hint="A command is one file, commands/<name>.md.")
    elif parts[0] == "extensions" and len(parts) < 3:
        raise InvalidTree(f"{path} does not say which coding agent it is for", hint="Put it into extensions/<adapter>/.")
    elif parts[0] == "settings":
        _check_settings(path, text(tree, path))


def _check_skill(tree: Tree, name: str) -> None:
    path = f"skills/{name}/SKILL.md"
    if not _SKILL_NAME.fullmatch(name):
        raise InvalidTree(f"the skill name {name!r} is not lower-case-with-hyphens", hint="Example: skills/read-the-schema/SKILL.md.")
    if path not in tree:
        raise InvalidTree(f"{path} is missing", hint="Every folder in skills/ has a SKILL.md.")
    found = _FRONT_MATTER.match(text(tree, path))
    if not found:
        raise InvalidTree(f"{path} has no front matter", hint="Start it with `---`, `name: …`, `description: …`, `---`.")
    head = _parse(SkillHead, _yaml(found.group(1), path), path)
    if head.name != name:
        raise InvalidTree(f"{path} calls itself {head.name!r}", hint=f"`name` must be that of its folder, {name}.")


def _check_settings(path: str, content: str) -> None:
    if path.count("/") != 1 or not path.endswith(".json"):
        raise InvalidTree(f"{path} is not a settings file", hint="Settings are one file for each coding agent, settings/<adapter>.json.")
    try:
        value = json.loads(content)
    except ValueError as error:
        raise InvalidTree(f"{path} is not valid JSON: {error}", hint="Mend the position named above.") from None
    if not isinstance(value, dict):
        raise InvalidTree(f"{path} must hold an object, not a {type(value).__name__}", hint="Start it with `{`.")


def _yaml(content: str, path: str) -> Any:
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        raise InvalidTree(f"{path} is not valid YAML: {problem}", hint="Quote values that hold a colon.") from None


def _parse(model: type[_Model], value: Any, path: str) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc'])) or 'it'}: {p['msg']}" for p in error.errors())
        raise InvalidTree(f"{path}: {problems}", hint="Mend what is named above.") from None
