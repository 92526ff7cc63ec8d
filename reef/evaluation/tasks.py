"""Task sets: YAML files of things to ask an agent, and how the outcome is graded.

.. code-block:: yaml

    tasks:
      - id: greeting
        prompt: Write "hello" into hello.txt.
        files: {README.md: "An empty project."}
        grader: {type: exact, file: hello.txt, expected: hello}
        tags: [smoke]
        protected: true
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from reef import plugins
from reef.artifacts.tree import check_paths
from reef.errors import ConfigError, InvalidTree, PluginError
from reef.evaluation.graders import Grader, explain
from reef.types import File, Task

HINT = "Task sets are described in docs/reference/tasks.md."


class _Entry(BaseModel):
    """One task as it is written down."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    prompt: str = Field(min_length=1)
    grader: dict[str, Any]
    files: dict[str, str] = Field(default_factory=dict)
    tags: tuple[str, ...] = ()
    protected: bool = False

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, str]) -> dict[str, str]:
        try:
            check_paths({path: File(text.encode()) for path, text in files.items()})
        except InvalidTree as error:
            raise ValueError(error.message) from None
        return files

    @field_validator("grader")
    @classmethod
    def _typed(cls, grader: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(grader.get("type"), str):
            raise ValueError("needs a type, such as exact, regex or command")
        return grader


def load_tasks(path: Path) -> tuple[Task, ...]:
    """Read and check a task set, its graders and their options included.

    Raises:
        ConfigError: it cannot be read, or a task is wrong; the message names file, task and key.
    """
    entries = _read(path)
    tasks = tuple(_task(path, position, entry) for position, entry in enumerate(entries, start=1))
    twice = [name for name, count in Counter(task.id for task in tasks).items() if count > 1]
    if twice:
        raise ConfigError(f"{path}: the id {twice[0]} is given twice", hint="Every task needs an id of its own.")
    return tasks


def grader_for(task: Task) -> Grader:
    """The grader a task asks for, with its options.

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
        return kind(task.grader_options)
    except ValidationError as error:
        raise ConfigError(f"task {task.id}: grader.{explain(error)}", hint=HINT) from None


def _task(path: Path, position: int, entry: Any) -> Task:
    name = entry.get("id", f"number {position}") if isinstance(entry, dict) else f"number {position}"
    try:
        checked = _Entry.model_validate(entry)
    except ValidationError as error:
        raise ConfigError(f"{path}: task {name}: {explain(error)}", hint=HINT) from None
    options = dict(checked.grader)
    task = Task(
        id=checked.id,
        prompt=checked.prompt,
        grader=options.pop("type"),
        grader_options=options,
        files=checked.files,
        tags=checked.tags,
        protected=checked.protected,
    )
    try:
        grader_for(task)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None
    return task


def _read(path: Path) -> list[Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the task set {path}: {error.strerror}", hint="evaluation.tasks names a YAML file.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}", hint="Mend the line named above.") from None
    if not isinstance(data, dict) or set(data) != {"tasks"} or not isinstance(data["tasks"], list):
        raise ConfigError(f"{path} must hold one key, tasks, with a list", hint=HINT)
    if not data["tasks"]:
        raise ConfigError(f"{path} has no tasks", hint=HINT)
    return data["tasks"]
