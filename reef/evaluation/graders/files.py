"""The grader of files left in the workspace."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from reef.evaluation.graders.contract import Grader, Options, RunCommand, Score, WorkspacePath
from reef.evaluation.graders.workspace import MAX_READ_BYTES, names, opened, short
from reef.types import Task

_BLOCK = 1 << 20
_MAX_HASHED_BYTES = 1 << 30
"""A file that is larger is not the expected one: an agent must not keep us reading."""


class Expected(BaseModel):
    """What is expected of the files at one path or pattern. Nothing said: that there is one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    equals: str | None = Field(None, description="The content, but for white space at both ends.")
    contains: str | None = None
    matches: str | None = Field(None, description="A regular expression that is found in the content; ^ and $ match at lines.")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="The digest of the content.")
    count: int | None = Field(None, ge=1, description="How many files there are.")
    absent: bool = Field(False, description="That there is none.")

    @field_validator("matches")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _makes_sense(self) -> Expected:
        if self.absent and self.model_fields_set != {"absent"}:
            raise ValueError("absent stands alone: a file that is not there has no content")
        return self


class FilesOptions(Options):
    """Options of ``files``."""

    files: dict[WorkspacePath, Expected] = Field(min_length=1, description="By path or pattern: `*` and `?` in a name, `**` any folders.")
    partial: bool = Field(False, description="Score the share of what was expected that is so, instead of all or nothing.")

    @model_validator(mode="before")
    @classmethod
    def _plain_text(cls, values: dict[str, Any]) -> dict[str, Any]:
        files = values.get("files")
        if not isinstance(files, dict):
            return values
        return {**values, "files": {path: {"equals": value} if isinstance(value, str) else value for path, value in files.items()}}


class FilesGrader(Grader):
    """``files``: the workspace holds the files that are expected, with the content that is expected.

    Example: ``{type: files, files: {out.txt: "42", "logs/*.log": {count: 2}, debug.txt: {absent: true}}}``
    """

    Options = FilesOptions

    def grade(self, *, task: Task, workspace: Path, answer: str, run_command: RunCommand) -> Score:
        problems = [problem for path, expected in self.options.files.items() if (problem := _problem(workspace, path, expected))]
        total = len(self.options.files)
        if not problems:
            return Score(1.0, "as expected" if total == 1 else f"all {total} as expected")
        score = (total - len(problems)) / total if self.options.partial else 0.0
        return Score(score, f"{problems[0]}" + (f", and {len(problems) - 1} more" if len(problems) > 1 else ""))

    def never_told(self) -> Iterable[str]:
        for expected in self.options.files.values():
            yield from (text for text in (expected.equals, expected.contains, expected.matches, expected.sha256) if text)


def _problem(workspace: Path, path: str, expected: Expected) -> str:
    """What is not as expected; empty where all is."""
    found = _found(workspace, path)
    if expected.absent:
        return f"{found[0]} is there" if found else ""
    if not found:
        return f"{path} is not there"
    if expected.count is not None and len(found) != expected.count:
        return f"{len(found)} files at {path}, expected {expected.count}"
    return next((f"{name}: {problem}" for name in found if (problem := _content_problem(workspace, name, expected))), "")


def _content_problem(workspace: Path, name: str, expected: Expected) -> str:
    with opened(workspace, name) as file:
        if file is None:
            return "is not a plain file"
        if expected.sha256 is not None and _digest(file) != expected.sha256:
            return "has other content"
        file.seek(0)
        content = file.read(MAX_READ_BYTES).decode("utf-8", "replace")
    if expected.equals is not None and content.strip() != expected.equals.strip():
        return f"got {short(content)}, expected {short(expected.equals)}"
    if expected.contains is not None and expected.contains not in content:
        return f"does not contain {short(expected.contains)}"
    if expected.matches is not None and re.search(expected.matches, content, re.MULTILINE) is None:
        return f"does not match: {short(content)}"
    return ""


def _found(workspace: Path, path: str) -> list[str]:
    if not set(path) & set("*?"):
        with opened(workspace, path) as file:
            return [] if file is None else [path]
    pattern = re.compile(_translated(path))
    return [name for name in names(workspace) if pattern.fullmatch(name)]


def _translated(pattern: str) -> str:
    """A pattern of paths as a regular expression."""
    parts = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(parts.get(piece) or re.escape(piece) for piece in re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern))


def _digest(file: IO[bytes]) -> str:
    digest, left = hashlib.sha256(), _MAX_HASHED_BYTES
    while left > 0 and (block := file.read(_BLOCK)):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest() if left > 0 else ""
