"""Task sets as YAML files.

.. code-block:: yaml

    tasks:
      - id: greeting
        prompt: Write "hello" into hello.txt.
        files: {README.md: "An empty project.", logo.png: {from: fixtures/logo.png}}
        workspace: fixtures/project          # a folder, laid down before the files
        setup: git init -q
        grader: {type: exact, file: hello.txt, expected: hello}
        examples:
          good: {files: {hello.txt: hello}}
          bad: ["I will not.", {files: {hello.txt: goodbye}}]
        tags: [smoke]
        group: greetings
        weight: 2
        protected: true
      - harbor: tasks/fix-the-build          # a Harbor task folder
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from reef.artifacts.tree import check_path, check_paths
from reef.errors import ConfigError, InvalidTree
from reef.evaluation import folders, harbor
from reef.evaluation.graders import explain
from reef.types import Example, File, Setup, Task

HINT = "Task sets are described in docs/reference/tasks.md."
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def _shell(value: Any) -> Any:
    return ("sh", "-c", value) if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _answered(value: Any) -> Any:
    return {"answer": value} if isinstance(value, str) else value


Command = Annotated[tuple[str, ...], BeforeValidator(_shell), Field(min_length=1)]
"""A list, or a string for `sh -c`."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Content(_Strict):
    """A file that is not plain text."""

    text: str | None = None
    base64: str | None = None
    from_: str | None = Field(None, alias="from", description="A path, relative to the task set.")
    executable: bool = False

    @model_validator(mode="after")
    def _one(self) -> _Content:
        if sum(value is not None for value in (self.text, self.base64, self.from_)) != 1:
            raise ValueError("needs one of text, base64 and from")
        return self


Files = dict[str, str | _Content]


class _Example(_Strict):
    answer: str = ""
    files: Files = Field(default_factory=dict)
    command: Command = ()


Examples = Annotated[list[Annotated[_Example, BeforeValidator(_answered)]], BeforeValidator(_listed)]


class _Examples(_Strict):
    good: Examples = Field(default_factory=list)
    bad: Examples = Field(default_factory=list)


class _Common(_Strict):
    """What may be said of every task."""

    tags: tuple[str, ...] = ()
    protected: bool = False
    weight: float = Field(1.0, gt=0, le=1000, allow_inf_nan=False)
    group: str = Field("", max_length=100)
    split: Literal["", "search", "heldout", "sealed"] = ""


class _Harbor(_Common):
    """A Harbor task by its folder."""

    harbor: str = Field(min_length=1)
    id: str = Field("", pattern=NAME + "|^$")


class _Entry(_Common):
    """One task as it is written down."""

    id: str = Field(pattern=NAME)
    prompt: str = Field(min_length=1)
    grader: dict[str, Any]
    files: Files = Field(default_factory=dict)
    workspace: str = ""
    setup: Command = ()
    setup_timeout_s: float = Field(60.0, gt=0, le=3600)
    examples: _Examples = Field(default_factory=_Examples)
    outcome: dict[str, Any] = Field(default_factory=dict)

    @field_validator("grader")
    @classmethod
    def _typed(cls, grader: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(grader.get("type"), str):
            raise ValueError("needs a type, such as exact, regex or command")
        return grader


def read(path: Path) -> list[Task]:
    """The tasks of a YAML file; those that say no split have none yet, and their graders are not looked at.

    Raises:
        ConfigError: it cannot be read, or a task is wrong; the message names file, task and key.
    """
    return [_task(path, position, entry) for position, entry in enumerate(_entries(path), start=1)]


def _task(path: Path, position: int, entry: Any) -> Task:
    name = entry.get("id", f"number {position}") if isinstance(entry, dict) else f"number {position}"
    try:
        if isinstance(entry, dict) and "harbor" in entry:
            return _of_harbor(_Harbor.model_validate(entry), path)
        return _of_entry(_Entry.model_validate(entry), path.parent)
    except ValidationError as error:
        raise ConfigError(f"{path}: task {name}: {explain(error)}", hint=HINT) from None
    except _Wrong as error:
        raise ConfigError(f"{path}: task {name}: {error}", hint=HINT) from None


def _of_harbor(entry: _Harbor, path: Path) -> Task:
    return harbor.read(
        path.parent / entry.harbor,
        name=entry.id,
        tags=entry.tags,
        protected=entry.protected,
        weight=entry.weight,
        group=entry.group,
        split=entry.split,
    )


def _of_entry(entry: _Entry, folder: Path) -> Task:
    options = dict(entry.grader)
    kind = options.pop("type")
    files: dict[str, str | File] = {}
    if entry.workspace:
        try:
            files.update(folders.read(folder / entry.workspace))
        except (OSError, InvalidTree) as error:
            raise _Wrong(f"workspace: {folders.problem(error)}") from None
    files.update(_files(entry.files, folder, key="files"))
    examples = [
        Example(good, example.answer, _files(example.files, folder, key=f"examples.{label}.files"), example.command)
        for good, label in ((True, "good"), (False, "bad"))
        for example in getattr(entry.examples, label)
    ]
    return Task(
        id=entry.id,
        prompt=entry.prompt,
        grader=kind,
        grader_options=options,
        files=files,
        tags=entry.tags,
        protected=entry.protected,
        weight=entry.weight,
        group=entry.group,
        split=entry.split,
        setup=Setup(entry.setup, entry.setup_timeout_s),
        examples=tuple(examples),
        outcome=entry.outcome,
    )


class _Wrong(Exception):
    """What is wrong with a task, with its key."""


def _files(files: Mapping[str, str | _Content], folder: Path, *, key: str) -> dict[str, str | File]:
    found: dict[str, str | File] = {}
    for path, content in files.items():
        try:
            check_path(path)
            found[path] = content if isinstance(content, str) else _file(content, folder)
        except InvalidTree as error:
            raise _Wrong(f"{key}: {error.message}") from None
        except (OSError, binascii.Error) as error:
            raise _Wrong(f"{key}.{path}: {folders.problem(error)}") from None
    try:
        check_paths({path: content if isinstance(content, File) else File(content.encode()) for path, content in found.items()})
    except InvalidTree as error:
        raise _Wrong(f"{key}: {error.message}") from None
    return found


def _file(content: _Content, folder: Path) -> File:
    if content.from_ is not None:
        read = folders.file(folder / content.from_)
        return File(read.data, read.executable or content.executable)
    data = content.text.encode() if content.text is not None else base64.b64decode(content.base64 or "", validate=True)
    return File(data, content.executable)


def _entries(path: Path) -> list[Any]:
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
