"""The vocabulary: nouns that do not change. No I/O, and nothing of ours is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

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
    NO_CHANGE = "no_change"
    """The candidate's bytes are the head's: nothing was tried, and none of the chain's error is spent."""


class CandidateState(StrEnum):
    """The life of a candidate: proposed → judging → rejected | inconclusive | held | canary | released. A person ends what is held, live
    reports what is on canary; the others are final."""

    PROPOSED = "proposed"
    JUDGING = "judging"
    HELD = "held"
    """Found better, and it runs code on the user's machine or is of another kind that a person has to look at first."""
    CANARY = "canary"
    """Found better, and it serves a share of the sessions to see whether that is so."""
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
class TokenTrace:
    """The tokens of one exchange as the engine had them. A conversation is never tokenised again: that is not the identity."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the completion's tokens under the policy that sampled them, natural, kept as 32-bit floats."""
    served: tuple[str, ...] = ()
    """The weights that made them, by the names that the engine answers by, where a swap fell into the answer. Empty: those it names."""
    starts: tuple[int, ...] = ()
    """For each of them, the index of the first token of the completion that it made; the first one's is 0."""


class Record(NamedTuple):
    """One inference exchange, as it is given back. A tuple: of each exchange two are made, and a frozen dataclass takes six times as long.

    ``request`` and ``response`` are the same JSON that was sent and answered, key order included; a streamed answer is its
    assembled ``chat.completion``. ``response`` is None where no answer came.
    """

    id: str
    """The receipt: ``x-reef-agent-record-id``."""
    scenario: str
    session: str | None
    release: int | None
    """The step the client said it was running; None for a client without a harness of ours, and for one on canary."""
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
    tokens: TokenTrace | None = None
    """Where the recipe that learns needs them and the upstream gives them."""
    candidate: str | None = None
    """The candidate on canary that made it, instead of a release: what a client runs, or what the gateway asked."""


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
class Content:
    """The bytes of one component."""

    content_id: str
    commit: str
    """A commit in the artifact repository whose files they are."""


@dataclass(frozen=True, slots=True)
class Release:
    """One accepted change: a link of a scenario's append-only chain."""

    scenario: str
    step: int
    """1 is the starter tree."""
    content_id: str
    """Of the harness: what a client installs. What else the release is made of, :attr:`others` says."""
    commit: str
    """The release's own commit in the artifact repository, with the harness's files."""
    operation: str
    """``import``, ``train``, ``promote`` or ``rollback``."""
    component: Component
    """What changed, or the first of what did."""
    recipe: str
    candidate: str | None
    summary: str
    previous_hash: str
    hash: str
    """Digest over every other field and the hash of the release before."""
    created_at: float
    others: Mapping[str, Content] = field(default_factory=dict, hash=False)
    """The components beside the harness, by name: those that a release names move and come back together."""

    @property
    def components(self) -> dict[str, Content]:
        """All that it is made of, by component."""
        return {Component.HARNESS.value: Content(self.content_id, self.commit), **self.others}


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
    companions: Mapping[str, Content] = field(default_factory=dict, hash=False)
    """Other components that change with it, by name."""
    dropped_at: float | None = None
    """When `reef gc` let go of its bytes."""

    @property
    def components(self) -> dict[str, Content]:
        """All that it changes, by component."""
        return {self.component.value: Content(self.content_id, self.commit), **self.companions}


@dataclass(frozen=True, slots=True)
class Container:
    """The container a task's agent and checks run in: an image, or a folder to build one from."""

    image: str = ""
    build: str = ""
    """An absolute path; its Dockerfile is built once."""
    why: str = ""
    """What the sandbox alone cannot give."""
    network: bool = False
    """Whether there is a network beside the gateway."""
    cpus: float | None = None
    memory_mb: int | None = None
    env: tuple[tuple[str, str], ...] = ()
    build_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What a task needs around its workspace. Nothing of it is the harness's doing: where it fails, the infrastructure failed."""

    command: tuple[str, ...] = ()
    """Run in the workspace, in the sandbox, before the agent; empty: nothing."""
    timeout_s: float = 60.0
    workdir: str = ""
    """An absolute path at which the workspace is to be found as well; needs a sandbox that isolates."""
    run_timeout_s: float | None = None
    """Bound on the agent's run; None: the service's."""
    container: Container | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """An outcome whose grade is known, to check a grader with."""

    good: bool
    answer: str = ""
    files: Mapping[str, str | File] = field(default_factory=dict)
    """Left in the workspace, over the task's own."""
    command: tuple[str, ...] = ()
    """Run in the workspace instead of the agent."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """Folders that the command sees, by their absolute path inside."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing an agent is asked to do, and how the outcome is graded."""

    id: str
    prompt: str
    grader: str
    """Name in ``reef.graders``."""
    grader_options: Mapping[str, JSON] = field(default_factory=dict)
    files: Mapping[str, str | File] = field(default_factory=dict)
    """Laid into the workspace before the run; a text stands for a file that is not executable."""
    tags: tuple[str, ...] = ()
    protected: bool = False
    """A regression on this task alone rejects a candidate."""
    weight: float = 1.0
    """How often it is drawn, beside the others."""
    group: str = ""
    """Related tasks share one, and with it their split; empty: the task is alone."""
    split: str = "search"
    """``search``, ``heldout`` or ``sealed``; see :mod:`reef.evaluation.splits`."""
    setup: Setup = Setup()
    examples: tuple[Example, ...] = ()
    outcome: Mapping[str, JSON] = field(default_factory=dict)
    """Of a task captured from traffic: the session it comes from, and what was reported on it."""


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
    stage: str = "confirm"
    """What it was run for: ``screen``, ``confirm`` or ``guard`` (:mod:`reef.evaluation.gate`); ``unused`` where the gate decided before."""
    attempt: int = 0
    """Counts the pair's reruns after faults of the infrastructure; only the last one decides."""
    cached: bool = False
    """A run of the head for an earlier candidate, taken again; it cost nothing this time."""
    setting: str = ""
    """Digest of the task, the model and the adapter with its version: runs with the same bytes and setting are alike."""
    tokens: int = 0
    """In and out, as the records of its session count them; those of its grader's model among them."""
    cost: float = 0.0
    """Money, by the configured prices; that of its grader's model included."""
    grading_tokens: int = 0
    """Those of them that grading took. They count in every budget, and not in what the two sides cost beside each other."""
    grading_cost: float = 0.0


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
    """All that were run, those that decided nothing included."""
    smallest_effect: float | None = None
    """What the budget would have found with a chance of 80 %; None where not even the largest."""
    tokens: int = 0
    cost: float = 0.0
    terms: Mapping[str, JSON] = field(default_factory=dict)
    """What was to be decided and how: with the trials, all that is needed to reach the verdict again
    (:mod:`reef.evaluation.verdicts`)."""
