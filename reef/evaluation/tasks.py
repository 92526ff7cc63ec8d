"""The tasks that candidates are judged on: a YAML set (:mod:`~reef.evaluation.taskset`), or a folder of Harbor tasks
(:mod:`~reef.evaluation.harbor`), with the split of each task and a look at its grader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from reef import plugins
from reef.config import SplitsConfig
from reef.errors import ConfigError, PluginError
from reef.evaluation import harbor, splits, taskset
from reef.evaluation.graders import Grader, Model, explain
from reef.evaluation.taskset import HINT
from reef.types import Task


def load_tasks(path: Path, *, shares: SplitsConfig = splits.ALL_SEARCH) -> tuple[Task, ...]:
    """Read and check a task set, its graders and their options included.

    Args:
        path: a YAML file, a Harbor task's folder, or a folder of such folders.
        shares: how many groups of tasks are held out and sealed.

    Raises:
        ConfigError: it cannot be read, or a task is wrong; the message names file, task and key.
    """
    found = harbor.read_all(path) if path.is_dir() else taskset.read(path)
    try:
        tasks = splits.assign(_checked(found), shares=shares)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None
    twice = [name for name, count in Counter(task.id for task in tasks).items() if count > 1]
    if twice:
        raise ConfigError(f"{path}: the id {twice[0]} is given twice", hint="Every task needs an id of its own.")
    return tasks


def grader_for(task: Task, *, model: Model | None = None) -> Grader:
    """The grader a task asks for, with its options.

    Args:
        model: for a grader that asks one.

    Raises:
        ConfigError: there is no such grader, or its options are wrong.
    """
    try:
        kind = plugins.load("reef.graders", task.grader)
    except PluginError as error:
        raise ConfigError(f"task {task.id}: grader.type: {error.message}", hint=error.hint) from error
    if not (isinstance(kind, type) and issubclass(kind, Grader)):
        raise ConfigError(f"task {task.id}: grader.type: {task.grader} is not a Grader", hint="See reef.evaluation.graders.")
    try:
        return kind(task.grader_options, model=model)
    except ValidationError as error:
        raise ConfigError(f"task {task.id}: grader.{explain(error)}", hint=HINT) from None


def _checked(tasks: Iterable[Task]) -> Iterable[Task]:
    for task in tasks:
        grader_for(task)
        yield task
