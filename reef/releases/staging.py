"""Which weights an engine has to have, and which it has.

What is wanted follows from the chain and the candidates alone: heads, the releases before them that running requests may still use, and
candidates that are judged or on canary. :mod:`reef.learner.staging` brings them there and notes it here; the gateway sends a scenario's
requests to the newest release that is noted, so a head that was moved a moment ago serves from the moment it is there and not before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from reef.releases import rows, schema
from reef.serving.policy import staged_name
from reef.types import CandidateState, Component, Content

_TRIED = (CandidateState.JUDGING, CandidateState.CANARY)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Weights that are to be on the engine."""

    scenario: str
    step: int | None
    """Of the release; None of a candidate."""
    name: str
    """What they are asked for as."""
    content: Content
    head: bool = False
    """Whether it is the newest release of its scenario."""


def wanted(connection: sa.Connection, *, keep: int) -> list[Wanted]:
    """All that is wanted, heads first.

    Args:
        keep: how many releases of a scenario, its head included.
    """
    releases, heads = schema.releases, schema.heads
    joined = releases.join(heads, (releases.c.scenario == heads.c.scenario) & (releases.c.step > heads.c.step - keep))
    query = sa.select(releases.c.scenario, releases.c.step, releases.c.others, heads.c.step)
    found = []
    for scenario, step, others, head in connection.execute(query.select_from(joined).order_by(releases.c.step.desc())):
        if content := others.get(Component.MODEL.value):
            given = Content(content["content_id"], content["commit"])
            found.append(Wanted(scenario, step, staged_name(scenario, step), given, head=step == head))
    tried = sa.select(schema.candidates).where(schema.candidates.c.state.in_(_TRIED)).order_by(schema.candidates.c.seq)
    for row in connection.execute(tried).mappings():
        candidate = rows.candidate_from(row)
        if (content := candidate.components.get(Component.MODEL.value)) is not None:
            found.append(Wanted(candidate.scenario, None, staged_name(candidate.scenario, candidate.id), content))
    return found


def note(tx: sa.Connection, engine: str, weights: Wanted) -> None:
    """Note that an engine has weights."""
    table = schema.staged
    tx.execute(table.delete().where(table.c.engine == engine, table.c.name == weights.name))
    values = {"engine": engine, "name": weights.name, "scenario": weights.scenario, "step": weights.step, "there": True, "at": time.time()}
    tx.execute(table.insert().values(values))


def forget(tx: sa.Connection, engine: str, names: Iterable[str]) -> None:
    """Note that an engine has them no more."""
    table = schema.staged
    tx.execute(table.update().where(table.c.engine == engine, table.c.name.in_(list(names))).values(there=False))


def put_away(tx: sa.Connection, engine: str, scenario: str) -> None:
    """Note that an engine was rid of all of a scenario's weights on purpose. It lost nothing: it is as before the first of them."""
    table = schema.staged
    tx.execute(table.delete().where(table.c.engine == engine, table.c.scenario == scenario, table.c.step.is_not(None)))


def noted(connection: sa.Connection, engine: str) -> set[str]:
    """The names that an engine has."""
    table = schema.staged
    return set(connection.execute(sa.select(table.c.name).where(table.c.engine == engine, table.c.there)).scalars())


def names(connection: sa.Connection) -> set[str]:
    """The names that some engine has."""
    return set(connection.execute(sa.select(schema.staged.c.name).where(schema.staged.c.there)).scalars())


def had(connection: sa.Connection, engine: str) -> set[str]:
    """The scenarios of which an engine ever had a release's weights."""
    table = schema.staged
    query = sa.select(table.c.scenario).where(table.c.engine == engine, table.c.step.is_not(None)).distinct()
    return set(connection.execute(query).scalars())


def serving(connection: sa.Connection) -> dict[str, int | None]:
    """The newest release of each scenario whose weights an engine has; None where it had some once, and has none now."""
    table = schema.staged
    newest = sa.func.max(sa.case((table.c.there, table.c.step)))
    query = sa.select(table.c.scenario, newest).where(table.c.step.is_not(None)).group_by(table.c.scenario)
    return {scenario: step for scenario, step in connection.execute(query)}
