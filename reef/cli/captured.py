"""A captured task written down: printed with its files in it, or added to a task set with its files in a folder beside it."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from reef import redaction
from reef.errors import ConfigError, InvalidTree, ReefError
from reef.evaluation import capture, folders
from reef.evaluation.tasks import load_tasks
from reef.types import File

FOLDER = "workspaces"
"""Beside the task set: a folder for each captured task."""


def grader(text: str) -> Mapping[str, Any] | None:
    """A grader as it was given on the command line; None for none."""
    if not text:
        return None
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--grader is not valid YAML: {error}", hint="Example: --grader '{type: regex, pattern: done}'") from None
    if not isinstance(found, dict) or not isinstance(found.get("type"), str):
        raise ConfigError("--grader needs a type", hint="Example: --grader '{type: regex, pattern: done}'")
    return found


def with_files(told: dict[str, Any], workspace: Path | None) -> dict[str, Any]:
    """The entry with the files of a workspace in it."""
    if workspace is None:
        return told
    return {**told, "files": {path: _content(file) for path, file in _read(workspace).items()}}


def add(told: dict[str, Any], *, output: Path, workspace: Path | None) -> None:
    """Add an entry to a task set, or begin one. What is there stays as it is written.

    Raises:
        ConfigError: the set would not be one; nothing is changed then.
    """
    entry = dict(told)
    made: Path | None = None
    if workspace is not None:
        files = _read(workspace)
        made = output.parent / FOLDER / entry["id"]
        if made.exists():
            raise ReefError(f"{made} is there already", hint="Name the task with --id.")
        _write(made, files)
        entry["workspace"] = f"{FOLDER}/{entry['id']}"
    before = output.read_text(encoding="utf-8").rstrip() + "\n" if output.exists() else "tasks:\n"
    unfinished = output.with_name(f".{output.name}.unfinished")
    try:
        unfinished.write_text(before + _fitting(capture.as_yaml(entry), before), encoding="utf-8")
        try:
            load_tasks(unfinished)
        except ConfigError as error:
            raise ConfigError(error.message.replace(str(unfinished), str(output)), hint=error.hint) from None
        unfinished.replace(output)
        made = None
    except OSError as error:
        raise ReefError(f"cannot write {output}: {error.strerror}", hint="Name another file with -o.") from None
    finally:
        unfinished.unlink(missing_ok=True)
        if made is not None:
            _remove(made)


def _fitting(item: str, before: str) -> str:
    """The item with the indentation of the list it is added to."""
    first = next((line for line in before.splitlines() if line.lstrip().startswith("- ")), "  - ")
    indent = first[: len(first) - len(first.lstrip())]
    return "".join(indent + line[2:] if line.strip() else line for line in item.splitlines(keepends=True))


def _read(workspace: Path) -> dict[str, File]:
    try:
        files = folders.read(workspace, leave_out=folders.LEFT_OUT)
    except (OSError, InvalidTree) as error:
        raise ReefError(
            f"cannot take the workspace: {folders.problem(error)}", hint="Copy what the task needs to another folder."
        ) from None
    for path, file in files.items():
        if (found := redaction.find(file.data.decode("utf-8", "replace"))) is not None:
            raise ReefError(f"{workspace / path} holds what looks like {found}", hint="A task set holds no secrets: take it out first.")
    return files


def _content(file: File) -> str | dict[str, Any]:
    try:
        text = file.data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(file.data).decode(), **({"executable": True} if file.executable else {})}
    return {"text": text, "executable": True} if file.executable else text


def _write(folder: Path, files: Mapping[str, File]) -> None:
    try:
        for path, file in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)
            target.chmod(0o755 if file.executable else 0o644)
    except OSError as error:
        _remove(folder)
        raise ReefError(f"cannot write {error.filename}: {error.strerror}", hint="Name another file with -o.") from None


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    print(f"{folder} is removed again", file=sys.stderr)
