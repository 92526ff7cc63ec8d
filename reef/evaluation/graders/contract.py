"""What the author of a grader writes: a class with :class:`Options` and one method."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from reef.artifacts.tree import check_path
from reef.errors import ConfigError, InvalidTree
from reef.types import Task

NO_FOLDERS: Mapping[str, Path] = {}


class Completed(Protocol):
    """A command that has ended."""

    @property
    def returncode(self) -> int: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def exceeded(self) -> str:
        """What it took too much of and was ended for; empty where nothing."""
        ...


class RunCommand(Protocol):
    """Runs a command in the workspace, in the sandbox or the container the agent ran in.

    ``folders`` are further ones that it may write, by their absolute path as the command sees them.
    """

    def __call__(self, argv: Sequence[str], *, timeout_s: float = 60.0, folders: Mapping[str, Path] = NO_FOLDERS) -> Completed: ...


class Model(Protocol):
    """A language model that a grader may ask, as `reef.learner.model.GatewayModel` is."""

    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str) -> str:
        """Return the text answered to chat messages, within a bound of time; UpstreamError where there is none.

        Args:
            purpose: the session the exchange is recorded in.
        """
        ...


@dataclass(frozen=True, slots=True)
class _AskingAs:
    """A model whose exchanges are all recorded in one session, whatever they are for."""

    model: Model
    session: str

    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str) -> str:
        return self.model.ask(messages, purpose=self.session)


@dataclass(frozen=True, slots=True)
class Score:
    """How well a task was done.

    Raises:
        ConfigError: the value is not a number in [0, 1]: the grader is wrong, and a wrong score must not decide a release.
    """

    value: float
    """In [0, 1]."""
    detail: str
    """One line a person reads."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and 0.0 <= self.value <= 1.0):
            raise ConfigError(f"a grader gave the score {self.value}", hint="Scores are numbers from 0 to 1.")


class Options(BaseModel):
    """Base for a grader's options; an unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _relative(path: str) -> str:
    if path:
        try:
            check_path(path)
        except InvalidTree as error:
            raise ValueError(error.message) from None
    return path


WorkspacePath = Annotated[str, AfterValidator(_relative)]
"""A path in the workspace; it cannot leave it."""


class Grader(ABC):
    """Scores outcomes. One instance serves one task and is used from several threads.

    Args:
        options: ``grader`` of the task without its ``type``, checked against :attr:`Options`.
        model: for graders that ask one; None where there is none, as when a task set is only read.

    Raises:
        ValidationError: pydantic's, for options that are wrong.
    """

    Options: ClassVar[type[Options]]
    """What a task may say about it."""
    needs_model: ClassVar[bool] = False
    """Whether it asks one. What it asks for a trial counts in the trial's tokens and cost, by the records of the trial's own session."""

    def __init__(self, options: Mapping[str, Any], *, model: Model | None = None) -> None:
        self.options: Any = self.Options.model_validate(dict(options))
        self.model = model

    @abstractmethod
    def grade(self, *, task: Task, workspace: Path, answer: str, run_command: RunCommand) -> Score:
        """Score one outcome.

        Args:
            task: what was asked.
            workspace: the folder the agent worked in.
            answer: its final text.
            run_command: for graders that need to run something; never run what an agent wrote in any other way.

        Raises:
            ConfigError: the grader is wrong, whatever the agent did.
            GraderFault: it could not do its work this time; both sides of the pair are run again.
        """

    def asking_as(self, session: str) -> Self:
        """The same grader, with what it asks its model recorded in ``session``."""
        if self.model is None:
            return self
        other = copy.copy(self)  # one instance serves many trials at the same time
        other.model = _AskingAs(self.model, session)
        return other

    def never_told(self) -> Iterable[str]:
        """Texts that a candidate may not contain, or the trials would grade what it was told: expected answers, checks."""
        return ()


def explain(error: ValidationError) -> str:
    """The problems of a task or of grader options, one after the other, each with its key."""
    problems = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        text = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        problems.append(f"{key}: {text}" if key else text)
    return "; ".join(problems)
