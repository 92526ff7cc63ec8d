"""Looks at the sealed tasks: two releases compared on tasks that judge no candidate. Evidence for people; no head moves by it.

A look is asked for, and answered by the learner, in a row each that the database lets nobody change; what has no answer yet is begun again
after a crash. Every look is counted. Whoever looks often enough and keeps what looks best has learned from the sealed tasks after all, and
the figure of a later look is worth less than that of the first.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from reef.errors import Conflict, NotFound
from reef.releases import schema
from reef.releases.publishing import writing
from reef.releases.store import ReleaseStore
from reef.types import Verdict

_looks, _answers = schema.sealed_looks, schema.sealed_answers


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """One comparison that was asked for."""

    id: str
    scenario: str
    step: int
    against: int
    pairs: int | None
    """How many; None: as many as a candidate may have."""
    asked_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What came of a look."""

    answered_at: float
    error: str
    """Why there is no figure; empty where there is one."""
    verdict: dict[str, Any] | None
    """A :class:`~reef.types.Verdict` as JSON, its trials included, which can be computed again like any other."""
    looks: int
    """The how many-th look at sealed tasks it was, in any scenario of this deployment; those without a figure do not count."""


def ask(store: ReleaseStore, scenario: str, *, step: int | None = None, against: int = 1, pairs: int | None = None) -> Look:
    """Ask for a look.

    Args:
        step: the release to measure; None: the head.
        against: the release to measure it against.

    Raises:
        NotFound: no such release.
        Conflict: both have the same harness, or another look of the scenario waits for its answer.
    """
    release = store.head(scenario) if step is None else store.release(scenario, step)
    other = store.release(scenario, against)
    if release.content_id == other.content_id:
        raise Conflict(
            f"releases {release.step} and {other.step} of {scenario} have the same harness: there is nothing to measure",
            hint="Name two that differ: --step and --against.",
        )
    look = Look(f"sealed-{secrets.token_hex(6)}", scenario, release.step, other.step, pairs, time.time())
    with writing(store.engine) as tx:
        waiting = tx.execute(_open().where(_looks.c.scenario == scenario)).mappings().first()
        if waiting is not None:
            raise Conflict(f"{waiting['id']} of {scenario} waits for its answer", hint="Wait for it: every look costs some of the seal.")
        tx.execute(_looks.insert().values(dataclasses.asdict(look)))
    return look


def waiting(store: ReleaseStore) -> Look | None:
    """The oldest look without an answer."""
    with store.engine.connect() as connection:
        row = connection.execute(_open().order_by(_looks.c.asked_at, _looks.c.id).limit(1)).mappings().first()
    return None if row is None else Look(**row)


def answer(store: ReleaseStore, look: Look, *, verdict: Verdict | None = None, error: str = "") -> None:
    """Answer a look, once."""
    told = None if verdict is None else dataclasses.asdict(verdict)
    with writing(store.engine) as tx:
        tx.execute(_answers.insert().values(look=look.id, answered_at=time.time(), error=error, verdict=told))


def looks(store: ReleaseStore, scenario: str) -> list[tuple[Look, Answer | None]]:
    """A scenario's looks, oldest first."""
    return [(look, answered) for look, answered in _all(store) if look.scenario == scenario]


def look(store: ReleaseStore, scenario: str, look_id: str) -> tuple[Look, Answer | None]:
    """One look.

    Raises:
        NotFound: there is none.
    """
    found = next((pair for pair in looks(store, scenario) if pair[0].id == look_id), None)
    if found is None:
        raise NotFound(f"{scenario} has no look {look_id}", hint=f"`reef verdict sealed {scenario}` asks for one.")
    return found


def _open() -> sa.Select[Any]:
    return sa.select(_looks).outerjoin(_answers, _answers.c.look == _looks.c.id).where(_answers.c.look.is_(None))


def _all(store: ReleaseStore) -> Iterator[tuple[Look, Answer | None]]:
    """Every look of the deployment, by the time of its answer, those without one last: there are few, as each costs a judging."""
    joined = sa.select(_looks, _answers).outerjoin(_answers, _answers.c.look == _looks.c.id)
    names = [field.name for field in dataclasses.fields(Look)]
    count = 0
    joined = joined.order_by(_answers.c.answered_at.is_(None), _answers.c.answered_at, _looks.c.asked_at)
    with store.engine.connect() as connection:
        rows = connection.execute(joined).mappings().all()
    for row in rows:
        count += row["answered_at"] is not None and not row["error"]
        answered = None if row["answered_at"] is None else Answer(row["answered_at"], row["error"], row["verdict"], count)
        yield Look(**{name: row[name] for name in names}), answered
