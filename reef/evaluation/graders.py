"""Graders: from the outcome of a run to a score in [0, 1]. :class:`ExactGrader` is the one to copy.

A workspace was written by an agent, so nothing in it is trusted: files are read without following links, only where they are regular
files, and only so far.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from reef.artifacts.tree import check_path
from reef.errors import ConfigError, InvalidTree
from reef.types import Task

MAX_READ_BYTES = 1 << 20


class Completed(Protocol):
    """A command that has ended."""

    @property
    def returncode(self) -> int: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...
    @property
    def timed_out(self) -> bool: ...


class RunCommand(Protocol):
    """Runs a command in the workspace, in the sandbox the agent ran in."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed: ...


@dataclass(frozen=True, slots=True)
class Score:
    """How well a task was done.

    Raises:
        ConfigError: the value is not a number in [0, 1]: the grader is wrong, and a wrong score must not decide a release.
    """

    value: float
    """In [0, 1]."""
    detail: str
    """One line a person reads."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and 0.0 <= self.value <= 1.0):
            raise ConfigError(f"a grader gave the score {self.value}", hint="Scores are numbers from 0 to 1.")


class Options(BaseModel):
    """Base for a grader's options; an unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _relative(path: str) -> str:
    if path:
        try:
            check_path(path)
        except InvalidTree as error:
            raise ValueError(error.message) from None
    return path


WorkspacePath = Annotated[str, AfterValidator(_relative)]
"""A path in the workspace; it cannot leave it."""


class Grader(ABC):
    """Scores outcomes. One instance serves one task and is used from several threads.

    Args:
        options: ``grader`` of the task without its ``type``, checked against :attr:`Options`.

    Raises:
        ValidationError: pydantic's, for options that are wrong.
    """

    Options: ClassVar[type[Options]]
    """What a task may say about it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options: Any = self.Options.model_validate(dict(options))

    @abstractmethod
    def grade(self, *, task: Task, workspace: Path, answer: str, run_command: RunCommand) -> Score:
        """Score one outcome.

        Args:
            task: what was asked.
            workspace: the folder the agent worked in.
            answer: its final text.
            run_command: for graders that need to run something; never run what an agent wrote in any other way.
        """


class ExactOptions(Options):
    """Options of ``exact``."""

    expected: str
    file: WorkspacePath = Field("", description="Path in the workspace; empty grades the answer.")
    strip: bool = Field(True, description="White space at both ends does not count.")


class ExactGrader(Grader):
    """``exact``: the answer, or a file of the workspace, equals ``expected``.

    Example: ``{type: exact, file: out.txt, expected: "42"}``
    """

    Options = ExactOptions

    def grade(self, *, task: Task, workspace: Path, answer: str, run_command: RunCommand) -> Score:
        found = _subject(workspace, self.options.file, answer)
        if found is None:
            return Score(0.0, f"{self.options.file} is not there")
        expected = self.options.expected
        same = found.strip() == expected.strip() if self.options.strip else found == expected
        return Score(float(same), "as expected" if same else f"got {_short(found)}, expected {_short(expected)}")


class RegexOptions(Options):
    """Options of ``regex``."""

    pattern: str
    file: WorkspacePath = Field("", description="Path in the workspace; empty grades the answer.")
    ignore_case: bool = False
    multiline: bool = Field(False, description="^ and $ match at lines.")
    absent: bool = Field(False, description="Turn it round: the pattern must not match.")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return pattern


class RegexGrader(Grader):
    """``regex``: the answer, or a file of the workspace, matches ``pattern`` somewhere.

    Example: ``{type: regex, pattern: "^total: \\\\d+$", multiline: true}``
    """

    Options = RegexOptions

    def grade(self, *, task: Task, workspace: Path, answer: str, run_command: RunCommand) -> Score:
        found = _subject(workspace, self.options.file, answer)
        if found is None:
            return Score(0.0, f"{self.options.file} is not there")
        flags = (re.IGNORECASE if self.options.ignore_case else 0) | (re.MULTILINE if self.options.multiline else 0)
        matches = re.search(self.options.pattern, found, flags) is not None
        right = matches != self.options.absent
        return Score(float(right), f"{'matches' if matches else 'does not match'}: {_short(found)}")


class CommandOptions(Options):
    """Options of ``command``."""

    command: tuple[str, ...] = Field(min_length=1, description="A list, or a string for `sh -c`.")
    score: str = Field("exit_status", pattern="^(exit_status|last_line)$")
    files: dict[WorkspacePath, str] = Field(default_factory=dict)
    timeout_s: float = Field(60.0, gt=0, le=3600)

    @model_validator(mode="before")
    @classmethod
    def _shell(cls, values: dict[str, Any]) -> dict[str, Any]:
        command = values.get("command")
        return {**values, "command": ["sh", "-c", command]} if isinstance(command, str) else values


class CommandGrader(Grader):
    """``command``: a command run in the workspace, in the sandbox. Its exit status decides (0 is 1.0), or, with ``score: last_line``, the
    number from 0 to 1 on its last line of output.

    Files in ``files`` are laid down first, over whatever the agent left there: tests it has neither seen nor changed.

    Example: ``{type: command, command: [python3, check.py], files: {check.py: "…"}}``
    """

    Options = CommandOptions

    def grade(self, *, task: Task, workspace: Path, answer: str, run_command: RunCommand) -> Score:
        try:
            for path, text in self.options.files.items():
                _lay(workspace, path, text)
        except OSError as error:  # the agent made its workspace unwritable
            return Score(0.0, f"the workspace does not take the check's files: {error.strerror}")
        done = run_command(self.options.command, timeout_s=self.options.timeout_s)
        if done.timed_out:
            return Score(0.0, f"the check did not end within {self.options.timeout_s:g} s")
        said = next((line.strip() for line in reversed((done.stdout + "\n" + done.stderr).splitlines()) if line.strip()), "")
        if self.options.score == "exit_status":
            return Score(float(done.returncode == 0), f"exit status {done.returncode}: {_short(said)}")
        return self._last_line(done)

    def _last_line(self, done: Completed) -> Score:
        """The number on the last line. A check that dies has found a broken outcome; one that prints no score is itself broken."""
        if done.returncode != 0:
            return Score(0.0, f"the check ended with status {done.returncode}: {_short(done.stderr.strip())}")
        line = next((line.strip() for line in reversed(done.stdout.splitlines()) if line.strip()), "")
        try:
            value = float(line)
        except ValueError:
            raise ConfigError(
                f"the check {' '.join(self.options.command)[:80]!r} printed {_short(line)} where a score was expected",
                hint="Its last line must be a number from 0 to 1.",
            ) from None
        return Score(value, f"scored {value:g}")


def _subject(workspace: Path, file: str, answer: str) -> str | None:
    """The text to grade: the answer, or a file; None where that is missing or is not a plain file inside the workspace."""
    if not file:
        return answer
    path = workspace / file
    try:
        if not path.parent.resolve().is_relative_to(workspace.resolve()):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a named pipe must not hold us up
    except (OSError, RuntimeError):  # not there, a link, or links in a circle
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            return opened.read(MAX_READ_BYTES).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def _lay(workspace: Path, path: str, text: str) -> None:
    """Write a file of the task over whatever is there, never through a link the agent may have planted."""
    folder = workspace
    *folders, name = path.split("/")
    for part in folders:
        folder /= part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(exist_ok=True)
    target = folder / name
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.write_text(text, encoding="utf-8")


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return repr(one_line if len(one_line) <= 80 else one_line[:79] + "…")


def explain(error: ValidationError) -> str:
    """The problems of a task or of grader options, one after the other, each with its key."""
    problems = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        text = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        problems.append(f"{key}: {text}" if key else text)
    return "; ".join(problems)
