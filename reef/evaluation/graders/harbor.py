"""The grader of Harbor's tasks: their ``tests/test.sh``, and the reward that it leaves under ``/logs/verifier``."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from reef.errors import ConfigError, GraderFault
from reef.evaluation.graders.contract import Completed, Grader, Options, RunCommand, Score
from reef.evaluation.graders.workspace import short, subject
from reef.types import Task


class HarborOptions(Options):
    """Options of ``harbor``."""

    tests: str = Field(description="The folder with test.sh, as an absolute path.")
    timeout_s: float = Field(600.0, gt=0, le=86_400)
    env: dict[str, str] = Field(default_factory=dict)


class HarborGrader(Grader):
    """``harbor``: runs ``/tests/test.sh`` where the agent worked and takes the number it wrote to ``/logs/verifier/reward.txt``, or the
    ``reward`` in ``reward.json``. The tests are not there while the agent works.

    Example: ``{type: harbor, tests: /data/fix-the-build/tests}``
    """

    Options = HarborOptions

    def grade(self, *, task: Task, workspace: Path, answer: str, run_command: RunCommand) -> Score:
        folder = Path(tempfile.mkdtemp(prefix="reef-harbor-"))
        try:
            shutil.copytree(self.options.tests, folder / "tests")
            (folder / "logs" / "verifier").mkdir(parents=True)
            variables = [f"{name}={value}" for name, value in self.options.env.items()]
            argv = ["env", *variables, "bash", "/tests/test.sh"]
            seen = {"/tests": folder / "tests", "/logs": folder / "logs"}
            done = run_command(argv, timeout_s=self.options.timeout_s, folders=seen)
            if done.timed_out:
                return Score(0.0, f"the tests did not end within {self.options.timeout_s:g} s")
            if done.exceeded:
                return Score(0.0, f"the tests took {done.exceeded}")
            return _reward(folder / "logs", done, task=task)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def never_told(self) -> Iterable[str]:
        for path in sorted(Path(self.options.tests).rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path.read_text(encoding="utf-8", errors="replace")


def _reward(logs: Path, done: Completed, *, task: Task) -> Score:
    """The reward, read as something that an agent may have written: its code runs in the tests."""
    said = next((line.strip() for line in reversed(done.stdout.splitlines()) if line.strip()), "")
    text, where = subject(logs, "verifier/reward.txt", ""), "reward.txt"
    if text is None:
        text, where = subject(logs, "verifier/reward.json", ""), "reward.json"
    if text is None:
        last = short(done.stderr.strip() or said)
        raise GraderFault(
            f"task {task.id}: tests/test.sh ended with status {done.returncode} and left no reward: {last}",
            hint="It must write /logs/verifier/reward.txt whatever the outcome. It has no network in the sandbox.",
        )
    try:
        value = float(text) if where == "reward.txt" else float(json.loads(text)["reward"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError(f"task {task.id}: {where} holds {short(text)}", hint="It must be a number from 0 to 1.") from None
    return Score(value, f"reward {value:g}: {short(said)}")
