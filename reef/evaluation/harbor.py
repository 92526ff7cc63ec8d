"""Harbor's task folders: ``task.toml``, ``instruction.md``, ``environment/``, ``tests/`` and, maybe, ``solution/``.

A task whose environment only lays files down is run in the sandbox: its working folder (``/app``, or what its Dockerfile says) is the
workspace, and ``/tests`` and ``/logs/verifier`` are there for its check. Any other needs Docker, and its :class:`~reef.types.Container`
says why. A task with several containers or steps is refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reef.errors import ConfigError, InvalidTree
from reef.evaluation import dockerfile, folders
from reef.evaluation.graders import explain
from reef.types import Container, Example, File, Setup, Task

WORKDIR = "/app"
HINT = "docs/reference/tasks.md says what is taken of Harbor's format."
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml")


class _Part(BaseModel):
    """Harbor's format grows: a key that we do not know is passed over, one that we know is checked."""

    model_config = ConfigDict(extra="ignore")


class _Metadata(_Part):
    tags: list[str] = Field(default_factory=list)


class _Verifier(_Part):
    timeout_sec: float = Field(600.0, gt=0, le=86_400)
    env: dict[str, str] = Field(default_factory=dict)


class _Agent(_Part):
    timeout_sec: float | None = Field(None, gt=0, le=86_400)


class _Environment(_Part):
    docker_image: str | None = None
    build_timeout_sec: float = Field(600.0, gt=0, le=86_400)
    allow_internet: bool | None = None
    cpus: float | None = Field(None, gt=0)
    memory_mb: int | None = Field(None, gt=0)
    memory: str | None = Field(None, pattern=r"^[0-9]+[MG]i?B?$")
    gpus: int | None = None
    env: dict[str, str] = Field(default_factory=dict)

    @property
    def bound_mb(self) -> int | None:
        """The bound on memory, however it is written."""
        if self.memory is None:
            return self.memory_mb
        number = int(re.sub(r"\D", "", self.memory))
        return number * 1024 if "G" in self.memory else number


class _File(_Part):
    """``task.toml``."""

    metadata: _Metadata = Field(default_factory=_Metadata)
    verifier: _Verifier = Field(default_factory=_Verifier)
    agent: _Agent = Field(default_factory=_Agent)
    environment: _Environment = Field(default_factory=_Environment)
    steps: list[Any] = Field(default_factory=list)


def read_all(folder: Path) -> list[Task]:
    """A task's folder, or every task in a folder of them, by name.

    Raises:
        ConfigError: one of them is wrong, or there is none.
    """
    if (folder / "task.toml").is_file():
        return [read(folder)]
    found = [read(path.parent) for path in sorted(folder.glob("*/task.toml"))]
    if not found:
        raise ConfigError(f"{folder} holds no Harbor task", hint="Each is a folder with task.toml, instruction.md and tests/.")
    return found


def read(
    folder: Path,
    *,
    name: str = "",
    tags: tuple[str, ...] = (),
    protected: bool = False,
    weight: float = 1.0,
    group: str = "",
    split: str = "",
) -> Task:
    """One task.

    Args:
        name: its id; else that of the folder.
        tags: beside those of ``task.toml``.

    Raises:
        ConfigError: a file is missing or wrong, or the task needs what we do not have; the message names the file and the key.
    """
    folder = folder.absolute()
    told = _told(folder)
    prompt = _text(folder / "instruction.md").strip()
    if not prompt:
        raise ConfigError(f"{folder / 'instruction.md'} is empty", hint=HINT)
    if not (folder / "tests" / "test.sh").is_file():
        raise ConfigError(f"{folder} has no tests/test.sh", hint="It must write a number from 0 to 1 to /logs/verifier/reward.txt.")
    files, workdir, container = _environment(folder, told.environment)
    return Task(
        id=name or re.sub(r"[^A-Za-z0-9._-]", "-", folder.name).lstrip("._-")[:100] or "task",
        prompt=prompt,
        grader="harbor",
        grader_options={"tests": str(folder / "tests"), "timeout_s": told.verifier.timeout_sec, "env": told.verifier.env},
        files=files,
        tags=tuple(dict.fromkeys((*tags, *told.metadata.tags))),
        protected=protected,
        weight=weight,
        group=group,
        split=split,
        setup=Setup(workdir=workdir, run_timeout_s=told.agent.timeout_sec, container=container),
        examples=_examples(folder),
    )


def _environment(folder: Path, told: _Environment) -> tuple[Mapping[str, File], str, Container | None]:
    """The files of the workspace, where it lies, and the container it needs."""
    context = folder / "environment"
    if any((context / name).exists() for name in _COMPOSE):
        raise ConfigError(f"{context}: it is made of several containers", hint="A task with a compose file cannot be run; leave it out.")
    try:
        if told.docker_image:
            raise dockerfile.NeedsContainer(f"the image {told.docker_image}")
        if told.gpus:
            raise dockerfile.NeedsContainer("a GPU")
        if told.env:
            raise dockerfile.NeedsContainer("variables of its environment")
        if (context / "Dockerfile").exists():
            plain = dockerfile.read(context)
            return plain.workspace(), plain.workdir, None
        return (folders.read(context) if context.is_dir() else {}), WORKDIR, None
    except dockerfile.NeedsContainer as error:
        container = Container(
            image=told.docker_image or "",
            build="" if told.docker_image else str(context),
            why=str(error),
            network=bool(told.allow_internet),
            cpus=told.cpus,
            memory_mb=told.bound_mb,
            env=tuple(sorted(told.env.items())),
            build_timeout_s=told.build_timeout_sec,
        )
        return {}, "", container
    except (OSError, InvalidTree) as error:
        raise ConfigError(f"{context}: {folders.problem(error)}", hint=HINT) from None


def _examples(folder: Path) -> tuple[Example, ...]:
    """The task's solution is known to be good, and doing nothing to be bad."""
    nothing = Example(good=False)
    solution = folder / "solution"
    if not (solution / "solve.sh").is_file():
        return (nothing,)
    return (Example(good=True, command=("bash", "/solution/solve.sh"), folders={"/solution": str(solution)}), nothing)


def _told(folder: Path) -> _File:
    path = folder / "task.toml"
    try:
        told = _File.model_validate(tomllib.loads(_text(path)))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", hint="Mend the line named above.") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error)}", hint=HINT) from None
    if told.steps:
        raise ConfigError(f"{path}: steps: a task of several steps cannot be run", hint="Leave this one out.")
    for where, env in (("verifier.env", told.verifier.env), ("environment.env", told.environment.env)):
        for key, value in env.items():
            if "${" in value:
                raise ConfigError(f"{path}: {where}.{key}: takes a variable of this machine", hint="No secret is passed into a sandbox.")
    return told


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=HINT) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error.reason}", hint=HINT) from None
