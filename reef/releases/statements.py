"""The statements that a release transaction is made of. Each belongs to the transaction of its caller."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from reef.errors import Conflict, NotFound, StaleHead
from reef.experience.schema import consumptions, records, report_references
from reef.failpoints import reach
from reef.releases import rows, schema
from reef.types import JSON, CandidateState, Release

FINAL = (CandidateState.RELEASED, CandidateState.REJECTED, CandidateState.INCONCLUSIVE, CandidateState.ABANDONED)
UNJUDGED = (CandidateState.PROPOSED, CandidateState.JUDGING)
"""In the hands of a learner, and nobody's when that one stops."""
OPEN = tuple(state for state in CandidateState if state not in FINAL)
_MAX_VARIABLES = 900
"""Of one statement; some builds of SQLite allow no more than 999."""


def steps(connection: sa.Connection) -> dict[str, int]:
    """The step of each scenario's head, by name."""
    found = connection.execute(sa.select(schema.heads.c.scenario, schema.heads.c.step).order_by(schema.heads.c.scenario))
    return {row.scenario: row.step for row in found}


def head(connection: sa.Connection, scenario: str) -> Release:
    """The release a scenario's head is at.

    Raises:
        NotFound: there is no such scenario.
    """
    releases, heads = schema.releases, schema.heads
    joined = releases.join(heads, (releases.c.scenario == heads.c.scenario) & (releases.c.step == heads.c.step))
    row = connection.execute(sa.select(releases).select_from(joined).where(heads.c.scenario == scenario)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no scenario {scenario!r}", hint="`reef status` lists the scenarios.")
    return rows.release_from(row)


def append(tx: sa.Connection, release: Release) -> None:
    """Write a release and move the head to it from the step before.

    Raises:
        StaleHead: the head is at another step.
    """
    heads = schema.heads
    tx.execute(schema.releases.insert().values(rows.release_values(release)))
    if release.step == 1:
        tx.execute(heads.insert().values(scenario=release.scenario, step=1))
        reach("release.inserted")
        return
    swap = heads.update().where(heads.c.scenario == release.scenario, heads.c.step == release.step - 1).values(step=release.step)
    if tx.execute(swap).rowcount != 1:
        raise stale(release.scenario, expected=release.step - 1, actual=head(tx, release.scenario).step)
    reach("release.inserted")


def move(tx: sa.Connection, candidate_id: str, state: CandidateState, reason: str, *, after: Sequence[CandidateState] = OPEN) -> None:
    """Change a candidate's state.

    Args:
        after: the states it may be in now.

    Raises:
        Conflict: it is in another one, usually at its end, or unknown.
    """
    table = schema.candidates
    values: dict[str, Any] = {"state": state, "reason": reason, "state_at": time.time()}
    if state is CandidateState.JUDGING:
        values["judging_at"] = values["state_at"]
    if (
        tx.execute(
            table.update().where(table.c.id == candidate_id, table.c.state.in_(after), table.c.dropped_at.is_(None)).values(values)
        ).rowcount
        != 1
    ):
        now = tx.execute(sa.select(table.c.state).where(table.c.id == candidate_id)).scalar_one_or_none()
        raise Conflict(f"candidate {candidate_id} is {now or 'unknown'} and cannot become {state}", hint="A candidate has one end.")
    reach("candidate.moved")


def consume(tx: sa.Connection, scenario: str, recipe: str, reports: Sequence[str], *, candidate: str | None) -> None:
    """Note reports a recipe is done with.

    Raises:
        Conflict: it was done with one of them before.
    """
    if not reports:
        return
    taken = consumed(tx, recipe, reports)
    if taken:
        raise Conflict(f"report {min(taken)} was consumed by {recipe} already", hint="Select the batch again.")
    values = {"recipe": recipe, "scenario": scenario, "candidate": candidate, "at": time.time()}
    tx.execute(consumptions.insert(), [{"report": report, **values} for report in dict.fromkeys(reports)])
    reach("settle.consumed")


def consumed(tx: sa.Connection, recipe: str, reports: Sequence[str]) -> set[str]:
    """Those of the reports that a recipe is done with."""
    table, found = consumptions, set[str]()
    for start in range(0, len(reports), _MAX_VARIABLES):
        part = reports[start : start + _MAX_VARIABLES]
        found.update(tx.execute(sa.select(table.c.report).where(table.c.recipe == recipe, table.c.report.in_(part))).scalars())
    return found


def receipts(connection: sa.Connection, reports: Sequence[str], *, limit: int) -> tuple[str, ...]:
    """The receipts that reports quote, the first ones of many. A receipt among the reports stands for itself."""
    table = report_references
    own = set(connection.execute(sa.select(records.c.id).where(records.c.id.in_(reports[:_MAX_VARIABLES]))).scalars())
    query = sa.select(table.c.record).where(table.c.report.in_(reports[:_MAX_VARIABLES])).order_by(table.c.report, table.c.position)
    quoted = connection.execute(query.limit(limit)).scalars()
    return tuple(dict.fromkeys([*(report for report in reports if report in own), *quoted]))[:limit]


def write_state(tx: sa.Connection, scenario: str, recipe: str, state: Mapping[str, JSON]) -> None:
    """Replace a recipe's state."""
    table = schema.recipe_state
    tx.execute(table.delete().where(table.c.scenario == scenario, table.c.recipe == recipe))
    tx.execute(table.insert().values(scenario=scenario, recipe=recipe, state=dict(state), at=time.time()))
    reach("settle.state")


def stale(scenario: str, *, expected: int, actual: int) -> StaleHead:
    """The error of a publisher that expected another head."""
    return StaleHead(
        f"the head of {scenario} is release {actual}, not {expected}: nothing was changed",
        hint="Start again from the new head.",
    )
