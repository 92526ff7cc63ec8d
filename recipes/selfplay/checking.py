"""Checkers: grading by data that a model wrote, in a process of its own.

Such data is no code, but a regular expression can take for ever and a schema can nest without end. So a child grades, bounded in time and
memory, and is killed where it does not come to an end. ``python -m recipes.selfplay.checking`` is that child: a line of JSON in, one out.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reef.errors import ConfigError

KINDS = ("exact", "regex", "json_schema")
TIMEOUT_S = 10.0
MAX_ANSWER_CHARS = 20_000
_MEMORY_BYTES = 2 << 30


def grade(kind: str, options: Mapping[str, Any], answers: Sequence[str]) -> list[tuple[float, str]]:
    """Score and detail of each answer.

    Raises:
        ConfigError: it is no checker of a safe kind, its data is wrong, or it does not come to an end.
    """
    if kind not in KINDS:
        raise ConfigError(f"a checker of kind {kind}", hint=f"Only {', '.join(KINDS)} are safe.")
    if "file" in options:
        raise ConfigError("a checker that reads a file", hint="It grades the answer alone.")
    asked = json.dumps({"kind": kind, "options": dict(options), "answers": [answer[:MAX_ANSWER_CHARS] for answer in answers]})
    command = [sys.executable, "-m", "recipes.selfplay.checking"]
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ConfigError("the checker does not come to an end", hint="A simpler pattern would.") from None
    try:
        told = json.loads(done.stdout)
    except ValueError:
        raise ConfigError(f"the checker broke: {done.stderr[-300:]}", hint="Its data is too large or too deep.") from None
    if "error" in told:
        raise ConfigError(str(told["error"]), hint="The data of the checker is wrong.")
    return [(float(score), str(detail)) for score, detail in told["grades"]]


def _child() -> None:
    from reef.errors import ReefError
    from reef.evaluation.graders import Score
    from reef.evaluation.tasks import grader_for
    from reef.types import Task

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    asked = json.load(sys.stdin)
    task = Task(id="selfplay", prompt="-", grader=asked["kind"], grader_options=asked["options"])

    def refuse(*_arguments: object, **_options: object) -> Any:
        raise ConfigError("a checker that runs a command", hint="None of the safe kinds does.")

    try:
        grader = grader_for(task)
        with tempfile.TemporaryDirectory() as workspace:
            found: list[Score] = [
                grader.grade(task=task, workspace=Path(workspace), answer=answer, run_command=refuse) for answer in asked["answers"]
            ]
    except ReefError as error:
        json.dump({"error": error.message}, sys.stdout)
    else:
        json.dump({"grades": [(score.value, score.detail) for score in found]}, sys.stdout)


if __name__ == "__main__":
    _child()
