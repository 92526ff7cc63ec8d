"""Sessions that a person wants to be answered again, by a candidate or the head: asked for by anybody, answered by the learner, which alone
has what runs them. A row each; what has no answer yet is begun again after a crash."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from reef.errors import Conflict, NotFound
from reef.experience.schema import records
from reef.releases import schema
from reef.releases.publishing import writing
from reef.releases.store import ReleaseStore
from reef.types import JSON

_replays = schema.replays
MOST_WAITING = 100
"""Of a scenario; each may take minutes."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One that was asked for."""

    id: str
    scenario: str
    session: str
    candidate: str | None
    """None: the head."""
    asked_at: float
    answered_at: float | None = None
    finding: Mapping[str, JSON] | None = None


def ask(store: ReleaseStore, scenario: str, session: str, *, candidate: str | None) -> Replay:
    """Ask for one.

    Raises:
        NotFound: no such session or candidate in the scenario.
        Conflict: the candidate's bytes are gone, or too many wait.
    """
    store.head(scenario)
    if candidate is not None:
        found = store.candidate(candidate)
        if found.scenario != scenario:
            raise NotFound(f"{scenario} has no candidate {candidate}", hint="`reef candidates` lists them.")
        if found.dropped_at is not None:
            raise Conflict(f"the bytes of {candidate} are gone: `reef gc` dropped them", hint="Have it proposed again.")
    replay = Replay(f"replay-{secrets.token_hex(6)}", scenario, session, candidate, time.time())
    there = sa.select(records.c.id).where(records.c.scenario == scenario, records.c.session == session, records.c.gone_at.is_(None))
    with writing(store.engine) as tx:
        if tx.execute(there.limit(1)).first() is None:
            raise NotFound(f"session {session} of {scenario} has no records", hint=f"`reef sessions -s {scenario}` lists those it has.")
        waiting_here = sa.select(sa.func.count()).where(_replays.c.scenario == scenario, _replays.c.answered_at.is_(None))
        if tx.execute(waiting_here).scalar_one() >= MOST_WAITING:
            raise Conflict(f"{MOST_WAITING} replays of {scenario} wait already", hint="`reef status` says what the learner is at.")
        tx.execute(_replays.insert().values(asdict(replay)))
    return replay


def waiting(store: ReleaseStore) -> Replay | None:
    """The oldest that has no answer."""
    query = sa.select(_replays).where(_replays.c.answered_at.is_(None)).order_by(_replays.c.asked_at, _replays.c.id).limit(1)
    with store.engine.connect() as connection:
        row = connection.execute(query).mappings().first()
    return None if row is None else Replay(**row)


def answer(store: ReleaseStore, replay: Replay, finding: Mapping[str, JSON]) -> None:
    """Answer one, once."""
    with writing(store.engine) as tx:
        change = _replays.update().where(_replays.c.id == replay.id, _replays.c.answered_at.is_(None))
        tx.execute(change.values(answered_at=time.time(), finding=dict(finding)))


def get(store: ReleaseStore, scenario: str, replay: str) -> Replay:
    """One of a scenario.

    Raises:
        NotFound: there is none of that id.
    """
    with store.engine.connect() as connection:
        row = connection.execute(sa.select(_replays).where(_replays.c.id == replay, _replays.c.scenario == scenario)).mappings().first()
    if row is None:
        raise NotFound(f"{scenario} has no replay {replay}", hint="POST …/replays answers with the id.")
    return Replay(**row)
