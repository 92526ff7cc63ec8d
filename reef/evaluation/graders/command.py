"""The grader that runs a check of its own in the workspace."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from reef.errors import ConfigError
from reef.evaluation.graders.contract import Completed, Grader, Options, RunCommand, Score, WorkspacePath
from reef.evaluation.graders.workspace import lay, short
from reef.types import Task


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
                lay(workspace, path, text)
        except OSError as error:  # the agent made its workspace unwritable
            return Score(0.0, f"the workspace does not take the check's files: {error.strerror}")
        done = run_command(self.options.command, timeout_s=self.options.timeout_s)
        if done.timed_out:
            return Score(0.0, f"the check did not end within {self.options.timeout_s:g} s")
        said = next((line.strip() for line in reversed((done.stdout + "\n" + done.stderr).splitlines()) if line.strip()), "")
        if self.options.score == "exit_status":
            return Score(float(done.returncode == 0), f"exit status {done.returncode}: {short(said)}")
        return self._last_line(done)

    def _last_line(self, done: Completed) -> Score:
        """The number on the last line. A check that dies has found a broken outcome; one that prints no score is itself broken."""
        if done.returncode != 0:
            return Score(0.0, f"the check ended with status {done.returncode}: {short(done.stderr.strip())}")
        line = next((line.strip() for line in reversed(done.stdout.splitlines()) if line.strip()), "")
        try:
            value = float(line)
        except ValueError:
            raise ConfigError(
                f"the check {' '.join(self.options.command)[:80]!r} printed {short(line)} where a score was expected",
                hint="Its last line must be a number from 0 to 1.",
            ) from None
        return Score(value, f"scored {value:g}")

    def never_told(self) -> Iterable[str]:
        return self.options.files.values()
