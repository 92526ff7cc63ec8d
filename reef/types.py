"""The vocabulary: nouns as frozen dataclasses. No I/O, and nothing of ours is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JSON = Any
"""A parsed JSON value; key order is kept."""


class End(StrEnum):
    """How an exchange really ended. Only ``complete`` may train."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    CLIENT_GONE = "client_gone"
    UPSTREAM_ERROR = "upstream_error"
    TIMEOUT = "timeout"


class Origin(StrEnum):
    """Who caused an exchange; decided by the token it came with, never by the caller's word."""

    USER = "user"
    TRIAL = "trial"
    PROPOSER = "proposer"


class Component(StrEnum):
    """What a candidate changes."""

    HARNESS = "harness"
    MODEL = "model"
    ROUTING = "routing"


class Decision(StrEnum):
    """What the gate says about a candidate."""

    PROMOTE = "promote"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"


class CandidateState(StrEnum):
    """The life of a candidate. The last four are final."""

    PROPOSED = "proposed"
    JUDGING = "judging"
    RELEASED = "released"
    REJECTED = "rejected"
    INCONCLUSIVE = "inconclusive"
    ABANDONED = "abandoned"


class TrialEnd(StrEnum):
    """How one trial ended. A fault of the infrastructure says nothing about the artifact."""

    SCORED = "scored"
    HARNESS_FAULT = "harness_fault"
    INFRASTRUCTURE_FAULT = "infrastructure_fault"


@dataclass(frozen=True, slots=True)
class Record:
    """One inference exchange, as it is given back.

    ``request`` and ``response`` are the same JSON that was sent and answered, key order included; a streamed answer is its
    assembled ``chat.completion``. ``response`` is None where no answer came.
    """

    id: str
    """The receipt: ``x-reef-agent-record-id``."""
    scenario: str
    session: str | None
    release: int | None
    """The step the client said it was running; None for a client without a harness of ours."""
    origin: Origin
    dialect: str
    upstream: str
    model: str
    end: End
    status: int
    """The HTTP status the client got."""
    streamed: bool
    request: JSON
    response: JSON
    usage: Mapping[str, int]
    started_at: float
    """Unix seconds."""
    first_byte_ms: float | None
    duration_ms: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Feedback that quotes receipts."""

    id: str
    scenario: str
    references: tuple[str, ...]
    """Receipts, oldest first. A report on a session quotes all of its records."""
    session: str | None
    score: float | None
    """In [0, 1] by convention: 0 failed, 1 perfect."""
    feedback: JSON
    """Text or an object, or None."""
    metadata: Mapping[str, JSON]
    created_at: float


@dataclass(frozen=True, slots=True)
class File:
    """One file of a tree."""

    data: bytes
    executable: bool = False

    @property
    def mode(self) -> str:
        """The git mode, ``100644`` or ``100755``."""
        return "100755" if self.executable else "100644"


Tree = Mapping[str, File]
"""Files by POSIX path relative to the tree's root."""


@dataclass(frozen=True, slots=True)
class Release:
    """One accepted change: a link of a scenario's append-only chain."""

    scenario: str
    step: int
    """1 is the starter tree."""
    content_id: str
    commit: str
    """The commit in the artifact repository."""
    operation: str
    """``import``, ``train`` or ``rollback``."""
    component: Component
    recipe: str
    candidate: str | None
    summary: str
    previous_hash: str
    hash: str
    """Digest over every other field and the hash of the release before."""
    created_at: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed change of one component, kept as a branch whatever becomes of it."""

    id: str
    scenario: str
    component: Component
    recipe: str
    base_step: int
    branch: str
    commit: str
    content_id: str
    state: CandidateState
    summary: str
    """One line: what it changes and why."""
    reason: str
    """Why it is in this state."""
    reports: tuple[str, ...]
    """The reports that caused it."""
    created_at: float


@dataclass(frozen=True, slots=True)
class Task:
    """One thing an agent is asked to do, and how the outcome is graded."""

    id: str
    prompt: str
    grader: str
    """Name in ``reef.graders``."""
    grader_options: Mapping[str, JSON] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Text files laid into the workspace before the run."""
    tags: tuple[str, ...] = ()
    protected: bool = False
    """A regression on this task alone rejects a candidate."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one task with one artifact, graded."""

    task: str
    side: str
    """``head`` or ``candidate``."""
    pair: int
    content_id: str
    end: TrialEnd
    score: float
    """In [0, 1]; 0 where the harness was at fault."""
    detail: str
    session: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's answer, with what it rests on."""

    decision: Decision
    reason: str
    effect: float
    """Mean paired difference candidate − head, in [−1, 1]."""
    low: float
    high: float
    """Anytime-valid confidence interval for the effect."""
    pairs: int
    wins: int
    losses: int
    evidence: float
    """Wealth of the promotion e-process; promoted at ``1 / alpha``."""
    alpha: float
    """The error share this candidate could spend."""
    seconds: float
    trials: tuple[Trial, ...] = ()
