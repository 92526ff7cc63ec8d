"""Graders tried on outcomes whose grade is known: before a grader decides a release, see it tell good from bad."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reef.errors import ConfigError, InvalidTree
from reef.evaluation.graders import Grader, Model
from reef.evaluation.graders.workspace import lay
from reef.evaluation.tasks import grader_for
from reef.harness import place
from reef.harness.episode import clean_environment, lay_files, set_up
from reef.harness.sandbox import Completed, Sandbox
from reef.types import Example, Task

GOOD = 0.5
"""An outcome that scores this much is taken for good."""
COMMAND_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Graded:
    """An example, and what became of it."""

    task: str
    grader: str
    good: bool
    """As it is labelled."""
    score: float | None
    """None where the grader could not say."""
    detail: str
    asks_a_model: bool

    @property
    def right(self) -> bool:
        """Whether the grader agrees with the label."""
        return self.score is not None and (self.score >= GOOD) == self.good


def check(task: Task, *, sandbox: Sandbox, model: Model | None = None) -> Iterator[Graded]:
    """Grade every example of a task, good ones first.

    Raises:
        ConfigError: the grader does not load.
    """
    grader = grader_for(task, model=model)
    for example in sorted(task.examples, key=lambda example: not example.good):
        try:
            score, detail = _grade(task, example, grader=grader, sandbox=sandbox)
        except (ConfigError, InvalidTree) as error:
            score, detail = None, error.message
        except OSError as error:  # of the sandbox, the model, or the grader's own
            score, detail = None, str(error)
        yield Graded(task.id, task.grader, example.good, score, detail, grader.needs_model)


def agreement(graded: Iterable[Graded]) -> tuple[int, int]:
    """How many labels the graders that ask a model agree with, and of how many."""
    asked = [item for item in graded if item.asks_a_model]
    return sum(item.right for item in asked), len(asked)


def _grade(task: Task, example: Example, *, grader: Grader, sandbox: Sandbox) -> tuple[float | None, str]:
    root = Path(tempfile.mkdtemp(prefix="reef-check-")).resolve()
    try:
        for name in ("home", "tmp", "work", "folders"):
            (root / name).mkdir()
        lay_files(task.files, root / "work")
        with place.opened(sandbox, root=root, setup=task.setup) as where:
            env = clean_environment(where.inside)

            def run_command(argv: Iterable[str], *, timeout_s: float = 60.0, folders: place.Folders = place.NO_FOLDERS) -> Completed:
                return where.run(list(argv), env=env, timeout_s=timeout_s, folders=folders)

            if problem := set_up(task.setup, run_command):
                return None, problem
            for path, content in example.files.items():
                lay(root / "work", path, content)
            if example.command:
                folders = {inside: root / "folders" / str(number) for number, inside in enumerate(example.folders)}
                for inside, copy in folders.items():
                    shutil.copytree(example.folders[inside], copy)
                done = run_command(example.command, timeout_s=COMMAND_TIMEOUT_S, folders=folders)
                if done.timed_out or done.returncode != 0:
                    said = "did not end" if done.timed_out else f"ended with status {done.returncode}: {done.stderr.strip()[-300:]}"
                    return None, f"the command of the example {said}"
            score = grader.grade(task=task, workspace=root / "work", answer=example.answer, run_command=run_command)
            return score.value, score.detail
    finally:
        shutil.rmtree(root, ignore_errors=True)
