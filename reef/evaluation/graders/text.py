"""Graders of a text: the agent's answer, or a file it left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, field_validator

from reef.evaluation.graders.contract import Grader, Options, RunCommand, Score, WorkspacePath
from reef.evaluation.graders.workspace import short, subject
from reef.types import Task


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
        found = subject(workspace, self.options.file, answer)
        if found is None:
            return Score(0.0, f"{self.options.file} is not there")
        expected = self.options.expected
        same = found.strip() == expected.strip() if self.options.strip else found == expected
        return Score(float(same), "as expected" if same else f"got {short(found)}, expected {short(expected)}")

    def never_told(self) -> Iterable[str]:
        return (self.options.expected,)


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
        found = subject(workspace, self.options.file, answer)
        if found is None:
            return Score(0.0, f"{self.options.file} is not there")
        flags = (re.IGNORECASE if self.options.ignore_case else 0) | (re.MULTILINE if self.options.multiline else 0)
        matches = re.search(self.options.pattern, found, flags) is not None
        right = matches != self.options.absent
        return Score(float(right), f"{'matches' if matches else 'does not match'}: {short(found)}")

    def never_told(self) -> Iterable[str]:
        return (self.options.pattern,)
