"""Where a scenario's requests go beside what the caller asked for: by the routing policy of its head (:mod:`reef.serving.policy`), to the
weights of its head, or to a candidate on canary.

Weights are asked for by the name of their release, the newest one that an engine has (:mod:`reef.releases.staging`): until a release is
there what served before goes on serving, the engine's own model before the first; and what an engine lost is not answered for by others.

Such a candidate gets the sessions that are drawn for it (:func:`reef.releases.rollout.drawn`), whole sessions and only named ones: to go
on elsewhere in the middle of a conversation would be worse than either. Its weights are asked for as ``<scenario>.<candidate>``, the name
they are staged under. All that the session sends is marked with the candidate, also what goes elsewhere by the caller's own choice.

In memory, kept fresh by :mod:`reef.gateway.commit_watch`. Where no scenario has any of it, a request pays for one look at
:attr:`Routing.plans`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
import structlog

from reef.artifacts.folders import Kind, kind_of
from reef.artifacts.repository import ArtifactRepository
from reef.config import ENGINE, JUDGE, Config
from reef.errors import ReefError
from reef.experience import jsontext
from reef.releases import rollout, schema, staging
from reef.releases.rollout import Mode, Rollout
from reef.serving.policy import Policy, staged_name
from reef.serving.policy import read as read_policy
from reef.types import JSON, CandidateState, Component, Origin

log = structlog.get_logger()

_ANY_CANARY = sa.select(sa.literal(1)).where(schema.candidates.c.state == CandidateState.CANARY).limit(1)


class Way(NamedTuple):
    """What becomes of one request."""

    candidate: str | None
    """The one on canary that answers it."""
    asked: dict[str, JSON]
    """The body to ask with."""
    raw: bytes
    """The same as bytes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one scenario."""

    head: Policy | None
    canary: Rollout | None
    """Only one that is split here, by sessions."""
    canary_policy: Policy | None


@dataclass(frozen=True, slots=True)
class EngineNames:
    """What the engine is to callers."""

    names: tuple[str, ...]
    """Of the model that it was started with."""
    is_default: bool
    """Whether it gets what names no model."""

    @classmethod
    def configured(cls, config: Config) -> EngineNames | None:
        """As serve.yaml says; None where there is no engine."""
        if not config.serving.vllm.wanted:
            return None
        name = config.serving.vllm.served_name
        return cls((name, f"{ENGINE}/{name}") if name else (), next(iter(config.named_upstreams)) == ENGINE)


class Routing:
    """Knows which scenarios have a policy or a canary.

    Args:
        artifacts: where policies are read from.
        heads: gives the step of each scenario's head.
        engine: what callers call the engine's own model; None where there is no engine.
    """

    def __init__(self, artifacts: ArtifactRepository, *, heads: Callable[[], Mapping[str, int]], engine: EngineNames | None = None) -> None:
        self._artifacts = artifacts
        self._heads = heads
        self._engine = engine
        self._staged: Mapping[str, int | None] = {}
        self._seen: Mapping[str, int] = {}
        self._policies: dict[str, Policy] = {}
        self._canaries: dict[str, tuple[Rollout, Policy | None]] = {}
        self.plans: Mapping[str, Plan] = {}
        """By scenario; empty where there is nothing to do."""

    def way(self, scenario: str, session: str, body: dict[str, JSON], *, raw: bytes, origin: Origin, candidate: str | None) -> Way:
        """Where a request goes.

        Args:
            session: as its client named it; empty where it did not.
            candidate: the one whose harness the client says it runs.
        """
        plan = self.plans.get(scenario)
        if plan is None:
            return Way(candidate, body, raw)
        policy = plan.head
        if plan.canary is not None and session and origin is Origin.USER and plan.canary.takes(session):
            candidate, policy = plan.canary.candidate.id, plan.canary_policy
        target = policy.target(body.get("model"), session=session, body=body) if policy is not None else ""
        if not target:
            return Way(candidate, body, raw)
        asked = {**body, "model": target}
        return Way(candidate, asked, jsontext.dumps(asked))

    def refresh(self, connection: sa.Connection) -> None:
        """Look whether anything changed. Called after every change that is announced, most of which are not about this."""
        heads, staged = self._heads(), staging.serving(connection) if self._engine is not None else {}
        changed = heads != self._seen or staged != self._staged
        if changed:
            self._staged = staged
            self._policies = self._of_heads(connection)
            self._seen = dict(heads)
        if self._canaries or connection.execute(_ANY_CANARY).first() is not None:
            found = {one.candidate.scenario: one for one in rollout.under_way(connection, Mode.CANARY) if one.by_session}
            now = {scenario: self._canaries.get(scenario) for scenario in found}
            if found.keys() != self._canaries.keys() or any(known is None or known[0] != found[name] for name, known in now.items()):
                self._canaries = {name: (canary, self._of_canary(canary)) for name, canary in found.items()}
                changed = True
        if changed:
            self.plans = {name: self._plan(name) for name in self._policies.keys() | self._canaries.keys()}

    def _plan(self, scenario: str) -> Plan:
        canary, policy = self._canaries.get(scenario, (None, None))
        return Plan(self._policies.get(scenario), canary if policy is not None else None, policy)

    def _of_heads(self, connection: sa.Connection) -> dict[str, Policy]:
        releases, heads = schema.releases, schema.heads
        joined = releases.join(heads, (releases.c.scenario == heads.c.scenario) & (releases.c.step == heads.c.step))
        query = sa.select(releases.c.scenario, releases.c.step, releases.c.others).select_from(joined)
        found = {}
        for scenario, step, others in connection.execute(query):
            if content := others.get(Component.ROUTING.value):
                policy = self._read(content["commit"], what=f"the head of {scenario}")
                if policy is not None:
                    found[scenario] = policy
            elif Component.MODEL.value in others and (self._engine is None or scenario in self._staged):
                # lost by the engine: asked for all the same, and refused there; the base weights never answer in their place
                found[scenario] = self._weights(staged_name(scenario, self._staged.get(scenario) or step))
            elif (there := self._staged.get(scenario)) is not None and self._is_full(connection, scenario, there):
                # rolled back to before any weights: these answer until the engine's own are in their place again
                found[scenario] = self._weights(staged_name(scenario, there))
        return found

    def _is_full(self, connection: sa.Connection, scenario: str, step: int) -> bool:
        """Whether the weights of a release are those of a whole model."""
        releases = schema.releases
        query = sa.select(releases.c.others).where(releases.c.scenario == scenario, releases.c.step == step)
        content = (connection.execute(query).scalar() or {}).get(Component.MODEL.value)
        try:
            return content is not None and kind_of(self._artifacts.read(content["commit"])) is Kind.CHECKPOINT
        except ReefError as error:
            log.error("weights that cannot be read", of=f"release {step} of {scenario}", reason=error.message)
            return False

    def _weights(self, name: str, *, upstream: str = ENGINE) -> Policy:
        """Where requests go for weights: from the names that the model below them has."""
        engine = self._engine
        if engine is None:  # whoever runs one gave it the name, and the default upstream is it
            return Policy(default=name)
        target = f"{upstream}/{name}"
        return Policy(models={own: target for own in engine.names}, default=target if engine.is_default else "")

    def _of_canary(self, canary: Rollout) -> Policy | None:
        candidate = canary.candidate
        if content := candidate.components.get(Component.ROUTING.value):
            return self._read(content.commit, what=candidate.id)
        content = candidate.components.get(Component.MODEL.value)
        try:
            full = content is not None and kind_of(self._artifacts.read(content.commit)) is Kind.CHECKPOINT
        except ReefError as error:
            log.error("weights that cannot be read", of=candidate.id, reason=error.message)
            return None
        return self._weights(staged_name(candidate.scenario, candidate.id), upstream=JUDGE if full else ENGINE)

    def _read(self, commit: str, *, what: str) -> Policy | None:
        """A policy; None where there is none that can be used, which the log says: requests go where they went."""
        try:
            return read_policy(self._artifacts.read(commit))
        except ReefError as error:
            log.error("no usable routing policy", of=what, reason=error.message)
            return None
