"""The grader that calls a Python function of yours, in a process of its own: it may hang, crash or print without harm to the learner."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic import Field

from reef.errors import ConfigError, GraderFault, SandboxError
from reef.evaluation.graders.contract import Completed, Grader, Options, RunCommand, Score
from reef.evaluation.graders.workspace import short
from reef.harness.sandbox import Sandbox
from reef.types import Task

_WORKER = """
import importlib, json, os, pathlib, sys
request, result = map(pathlib.Path, sys.argv[1:])
asked = json.loads(request.read_bytes())
module, _, name = asked["function"].partition(":")
function = importlib.import_module(module)
for part in name.split("."):
    function = getattr(function, part)
given = function(pathlib.Path(asked["workspace"]), asked["answer"], **asked["arguments"])
value, detail = given if isinstance(given, tuple) else (given, "")
result.write_text(json.dumps([float(value), str(detail)]), encoding="utf-8")
"""


class PythonOptions(Options):
    """Options of ``python``."""

    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", description="`package.module:function`.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Given to it by name.")
    timeout_s: float = Field(60.0, gt=0, le=3600)


class PythonGrader(Grader):
    """``python``: a function of yours, ``function(workspace: Path, answer: str, **arguments)``. It gives a number from 0 to 1, a bool, or
    a pair of one of them and a line of text. It is imported as the learner would, and is yours to write with care: the workspace is the
    agent's, so import and run nothing of it.

    Example: ``{type: python, function: "my_checks:words", arguments: {at_least: 200}}``
    """

    Options = PythonOptions

    def grade(self, *, task: Task, workspace: Path, answer: str, run_command: RunCommand) -> Score:
        asked = {
            "function": self.options.function,
            "workspace": str(workspace),
            "answer": answer,
            "arguments": self.options.arguments,
        }
        # nothing of our environment: there are tokens in it
        env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "VIRTUAL_ENV") if name in os.environ}
        env["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        with tempfile.TemporaryDirectory(prefix="reef-grader-") as folder:
            request, result = Path(folder, "request.json"), Path(folder, "result.json")
            request.write_text(json.dumps(asked), encoding="utf-8")
            argv = [sys.executable, "-P", "-c", _WORKER, str(request), str(result)]
            try:
                done = Sandbox("none").run(argv, cwd=Path(folder), env=env, timeout_s=self.options.timeout_s)
            except SandboxError as error:
                raise GraderFault(f"{self.options.function} could not be started: {error.message}", hint=error.hint) from error
            return self._score(done, result)

    def _score(self, done: Completed, result: Path) -> Score:
        name = self.options.function
        if done.timed_out:
            raise GraderFault(f"{name} did not end within {self.options.timeout_s:g} s", hint="Raise grader.timeout_s, or make it faster.")
        if done.returncode != 0 or not result.exists():
            said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), f"exit status {done.returncode}")
            raise ConfigError(
                f"the grader {name} failed: {short(said)}",
                hint="It must give a number from 0 to 1 whatever the agent left: an outcome that is missing or broken is a 0.",
            )
        value, detail = json.loads(result.read_text(encoding="utf-8"))
        return Score(value, detail or f"scored {value:g}")
