"""Between the gate's word and the release: canaries and shadows.

A *canary* is a candidate that serves a share of the sessions beside the head. Who gets it is drawn by a stable hash, so it needs no memory
and every gateway draws alike: of weights and routing the session, of a harness the installation that asks for updates. Its records carry
its id instead of a step. It lasts as long as the candidate is in the state ``canary``; a person's `reef promote` or `reef reject` ends it
like any other end.

A *shadow* answers recorded traffic, off the serving path, while its candidate is ``held``: it never moves a head.

Here is what is planned and kept. What reports on a canary say is in :mod:`reef.releases.live_reports`; the learner's process acts on it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from reef.config import ReleaseConfig
from reef.releases import pins, rows, schema
from reef.releases.store import ReleaseStore
from reef.types import JSON, Candidate, CandidateState, Component, Verdict


class Mode(StrEnum):
    """How a promoted candidate is rolled out."""

    IMMEDIATE = "immediate"
    CANARY = "canary"
    SHADOW = "shadow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What becomes of candidates that the gate promotes."""

    mode: Mode = Mode.IMMEDIATE
    share: float = 0.1
    min_reports: int = 20
    max_s: float = 14 * 86_400.0
    sessions: int = 5
    requests: int = 50
    min_effect: float = 0.1
    """δ of the gate."""
    alpha: float = 0.05
    """Of a candidate whose verdict names no share of the chain's error: one that was not judged by the gate."""

    @classmethod
    def configured(cls, config: ReleaseConfig, *, min_effect: float, alpha: float) -> Plan:
        """As serve.yaml says."""
        told = config.rollout
        return cls(
            mode=Mode(told.mode),
            share=told.canary.share,
            min_reports=told.canary.min_reports,
            max_s=told.canary.max_days * 86_400.0,
            sessions=told.shadow.sessions,
            requests=told.shadow.requests,
            min_effect=min_effect,
            alpha=alpha,
        )


IMMEDIATE = Plan()


@dataclass(frozen=True, slots=True)
class Rollout:
    """One under way, or at its end."""

    candidate: Candidate
    mode: Mode
    plan: Plan
    started_at: float
    ended_at: float | None
    finding: Mapping[str, JSON] | None

    @property
    def by_session(self) -> bool:
        """Whether the gateway splits sessions; else the update check splits installations."""
        return Component.HARNESS not in self.candidate.components

    def takes(self, who: str) -> bool:
        """Whether a session or installation gets the candidate."""
        return drawn(self.candidate, who, share=self.plan.share)


def drawn(candidate: Candidate, who: str, *, share: float) -> bool:
    """The draw: the same for the same scenario, candidate and who, and independent between candidates, so nobody is always the one."""
    digest = hashlib.sha256("\0".join((candidate.scenario, candidate.id, who)).encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def begin(tx: sa.Connection, candidate: Candidate, verdict: Verdict, plan: Plan) -> None:
    """Note that a rollout begins, in the transaction that changes the candidate's state."""
    terms = asdict(plan) | {"alpha": verdict.alpha or plan.alpha}
    tx.execute(schema.rollouts.insert().values(candidate=candidate.id, mode=plan.mode, terms=terms, started_at=time.time()))


def end(tx: sa.Connection, candidate_id: str, finding: Mapping[str, JSON]) -> bool:
    """Note what came out; False where it was noted before."""
    table = schema.rollouts
    change = table.update().where(table.c.candidate == candidate_id, table.c.ended_at.is_(None))
    return tx.execute(change.values(ended_at=time.time(), finding=dict(finding))).rowcount == 1


def under_way(connection: sa.Connection, mode: Mode, *, scenario: str | None = None) -> list[Rollout]:
    """Rollouts that are neither at their end nor overtaken by a person's word."""
    state = CandidateState.CANARY if mode is Mode.CANARY else CandidateState.HELD
    query = _query().where(schema.rollouts.c.mode == mode, schema.rollouts.c.ended_at.is_(None), schema.candidates.c.state == state)
    if scenario is not None:
        query = query.where(schema.candidates.c.scenario == scenario)
    return [_from(row) for row in connection.execute(query.order_by(schema.candidates.c.seq)).mappings()]


def canary(store: ReleaseStore, scenario: str) -> Rollout | None:
    """The canary of a scenario. There is at most one: two would share the sessions, and the one to survive would find another head."""
    with store.engine.connect() as connection:
        return next(iter(under_way(connection, Mode.CANARY, scenario=scenario)), None)


def of(store: ReleaseStore, candidate_id: str) -> Rollout | None:
    """A candidate's rollout, whatever became of it."""
    with store.engine.connect() as connection:
        row = connection.execute(_query().where(schema.rollouts.c.candidate == candidate_id)).mappings().one_or_none()
    return None if row is None else _from(row)


def offered(store: ReleaseStore, scenario: str, *, client: str) -> Candidate | None:
    """The candidate that an installation is to run instead of the head; None for most of them, and for those that are pinned.

    Args:
        client: its id; whoever says none runs the head.
    """
    if not client:
        return None
    found = canary(store, scenario)
    if found is None or found.by_session or not found.takes(client):
        return None
    return None if pins.pins(store, scenario).keys() & {client, pins.EVERYBODY} else found.candidate


def _query() -> sa.Select[Any]:
    table = schema.rollouts
    joined = schema.candidates.join(table, table.c.candidate == schema.candidates.c.id)
    return sa.select(schema.candidates, *(table.c[name] for name in ("mode", "terms", "started_at", "ended_at", "finding"))).select_from(
        joined
    )


def _from(row: sa.RowMapping) -> Rollout:
    plan = Plan(**{**row["terms"], "mode": Mode(row["mode"])})
    return Rollout(rows.candidate_from(row), plan.mode, plan, row["started_at"], row["ended_at"], row["finding"])
