"""The recipe contract: what a method author writes. :class:`RecordOnly` is the smallest recipe; ``cordis.recipe`` is one to copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel

from reef.artifacts.repository import ArtifactRepository
from reef.experience.store import ExperienceStore
from reef.learner.ground import TrainingGround
from reef.types import JSON, Candidate, Component, Release, Report, Verdict


class Model(Protocol):
    """A language model a recipe may ask; answers come through the gateway, recorded with origin ``proposer``."""

    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str, model: str = "") -> str:
        """Return the text answered to ``messages``.

        Args:
            messages: chat messages, ``role`` and ``content``.
            purpose: names the call's session in the records, e.g. the batch it works on.
            model: a name the gateway knows; empty: the default one.

        Raises:
            UpstreamError: no answer within the bound.
        """
        ...


@dataclass(frozen=True, slots=True)
class Workbench:
    """What a recipe gets to work with."""

    scenario: str
    store: ExperienceStore
    artifacts: ArtifactRepository
    model: Model
    adapter: str
    """Name of the coding agent whose harness evolves."""
    withheld: frozenset[str] = frozenset()
    """Sessions that held-out and sealed tasks were captured from: whoever proposes must not be shown them, nor what was said of them."""
    chain: Callable[[], Sequence[Release]] = tuple
    """Gives the scenario's releases, oldest first: what served when."""
    head: Release | None = None
    """What serves now: the parent, unless it moves meanwhile."""
    state: Mapping[str, JSON] = field(default_factory=dict)
    """What the recipe kept for the scenario, see :class:`Unreleased`."""
    ground: TrainingGround | None = None
    """For recipes that train weights."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The experience one step of learning starts from. Its reports are consumed when the step settles."""

    reports: tuple[Report, ...]
    fresh: bool = False
    """Whether the recipe left out by itself what is too old."""

    @property
    def consumes(self) -> tuple[str, ...]:
        """What is consumed: the ids of the reports, or receipts where a recipe needs no reports."""
        return tuple(report.id for report in self.reports)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A candidate tried before for the same batch, and what became of it."""

    candidate: Candidate
    verdict: Verdict | None
    """None where it was refused before any trial."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate's bytes, already in the artifact repository on a branch of their own."""

    branch: str
    commit: str
    summary: str
    """One line a person reads: what changes and why."""


@dataclass(frozen=True, slots=True)
class Unreleased:
    """Something was learned that changes nothing that serves, a critic say: the batch is consumed, and the recipe keeps a state."""

    summary: str
    state: Mapping[str, JSON]
    """Given back as :attr:`Workbench.state`; written in the transaction that consumes the batch."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What :meth:`Recipe.select` found: a batch to learn from, and reports to pass over for good."""

    batch: Batch | None = None
    passed_over: tuple[str, ...] = field(default=())


class Recipe(ABC):
    """One method. An instance serves one scenario in the learner process; it keeps no state between calls that it cannot lose.

    Args:
        batch_size: reports that make one step.
        options: ``reef.options`` of serve.yaml; unknown ones must raise :class:`~reef.errors.ConfigError`.
    """

    name: str
    component: Component
    attempts: int = 1
    """Candidates proposed for one batch until one is released."""
    needs_tokens: ClassVar[bool] = False
    """Whether it learns from token ids and log-probabilities; the gateway then captures them where the upstream gives them."""
    report_schema: ClassVar[type[BaseModel] | Mapping[str, Any] | None] = None
    """What ``score``, ``feedback`` and ``metadata`` of a report must be: a pydantic model or a JSON schema of an object with those of
    them that are given. ``POST /reef/report`` refuses any other with the field named. Imported reports, and those that were stored
    before, may be of any form. None: so may all."""

    def __init__(self, *, batch_size: int, options: Mapping[str, Any]) -> None:
        self.batch_size = batch_size
        self.options = options

    @property
    def parts(self) -> Sequence[Recipe]:
        """The recipes that take turns in each scenario: here, itself alone.

        A recipe that is made of others gives those, and takes no step itself. Each has a name, a component and, by its name, a consumption
        of its own: a report may serve each of them, and each of them once.
        """
        return (self,)

    @abstractmethod
    def select(self, bench: Workbench) -> Selection:
        """Pick the next batch from reports this recipe has not consumed; an empty Selection waits for more."""

    @abstractmethod
    def propose(self, batch: Batch, *, parent: Release, earlier: Sequence[Attempt], bench: Workbench) -> Proposal | Unreleased:
        """Write a candidate that starts from ``parent``.

        Args:
            batch: what :meth:`select` gave.
            parent: the head to improve on; immutable.
            earlier: attempts for this batch that were not released, oldest first.

        Raises:
            ProposalError: no usable candidate; the batch is settled without one.
            ReefError: any other, say of a process that was killed: the batch stays as it is, and the step is tried again later.
        """


class RecordOnly(Recipe):
    """``record``: keeps experience and learns nothing."""

    name = "record"
    component = Component.HARNESS

    def select(self, bench: Workbench) -> Selection:
        return Selection()

    def propose(self, batch: Batch, *, parent: Release, earlier: Sequence[Attempt], bench: Workbench) -> Proposal:
        raise AssertionError("record never selects a batch")
