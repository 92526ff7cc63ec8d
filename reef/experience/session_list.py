"""The sessions of a scenario in one line each, from a bounded part of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from reef.experience import schema
from reef.types import End

WINDOW = 10_000
"""Records of the scenario that one page is made from."""
SCANNED = 100_000
"""Records of the log that they are looked for among; a scenario that was long silent takes several pages to come to."""

_records, _sessions, _reports, _quoted = schema.records, schema.sessions, schema.reports, schema.report_references


@dataclass(frozen=True, slots=True)
class Summary:
    """One session."""

    id: str
    adapter: str | None
    """The coding agent, where the session was registered."""
    release: int | None
    """The release it ran: as registered, else the newest that a record names."""
    model: str
    """Of the newest record."""
    records: int
    whole: bool
    """Whether all its records are counted here. Of one with very many only the newest are."""
    first_at: float
    """When the first of them began, in Unix seconds."""
    last_at: float
    """When the last of them ended."""
    prompt_tokens: int
    completion_tokens: int
    ends: Mapping[str, int]
    """How often each kind of end came."""
    reports: int
    score: float | None
    """The newest score a report gave."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some sessions, the one with the newest record first."""

    sessions: Sequence[Summary]
    before: int | None
    """Where the next page begins; None where nothing is left."""


def page(tx: sa.Connection, scenario: str, *, limit: int, before: int | None) -> Page:
    """The newest sessions of a scenario; see :meth:`reef.experience.store.ExperienceStore.sessions`."""
    top = before if before is not None else (tx.execute(sa.select(sa.func.max(_records.c.seq))).scalar() or 0) + 1
    lowest = max(0, top - SCANNED)
    # Joined with nothing, so that no index on it is used: every record the scenario ever had would be sorted. The table itself is in order.
    of_scenario = _records.c.scenario.concat("") == scenario
    inside = sa.select(_records.c.seq).where(of_scenario, _records.c.seq < top, _records.c.seq >= lowest)
    window = inside.order_by(_records.c.seq.desc()).limit(WINDOW).subquery()
    seen, floor = tx.execute(sa.select(sa.func.count(), sa.func.min(window.c.seq)).select_from(window)).one()
    if seen < WINDOW:
        floor = lowest
    found = _summaries(tx, _records.c.seq.between(floor, top - 1), scenario, of_scenario=of_scenario, limit=limit, top=before)
    if len(found) == limit:
        return Page([summary for _, summary in found], found[-1][0])
    return Page([summary for _, summary in found], floor if floor > 1 else None)


def one(tx: sa.Connection, scenario: str, session: str) -> Summary | None:
    """A single session, by its newest records; None where it has none."""
    this = sa.and_(_records.c.scenario == scenario, _records.c.session == session)
    newest = sa.select(_records.c.seq).where(this).order_by(_records.c.seq.desc()).limit(WINDOW).subquery()
    floor = tx.execute(sa.select(sa.func.min(newest.c.seq))).scalar()
    if floor is None:
        return None
    return _summaries(tx, sa.and_(this, _records.c.seq >= floor), scenario, of_scenario=this, limit=1, top=None)[0][1]


def reports_of(scenario: str, session: str) -> sa.ColumnElement[bool]:
    """A condition on ``reports``: those that quote a record of a session."""
    quoting = sa.select(_quoted.c.report).join(_records, _quoted.c.record == _records.c.id)
    quoting = quoting.where(_records.c.scenario == scenario, _records.c.session == session)
    return sa.or_(_reports.c.id.in_(quoting), sa.and_(_reports.c.scenario == scenario, _reports.c.session == session))


def _summaries(
    tx: sa.Connection,
    window: sa.ColumnElement[bool],
    scenario: str,
    *,
    of_scenario: sa.ColumnElement[bool],
    limit: int,
    top: int | None,
) -> list[tuple[int, Summary]]:
    """What the records of a window say of their sessions, and the position of each one's newest record."""
    named = _records.c.session.is_not(None)
    ends = [sa.func.sum(sa.case((_records.c.end == end.value, 1), else_=0)).label(f"end_{end.value}") for end in End]
    grouped = sa.select(
        _records.c.session.label("session"),
        sa.func.count().label("records"),
        sa.func.min(_records.c.seq).label("oldest"),
        sa.func.max(_records.c.seq).label("newest"),
        sa.func.min(_records.c.started_at).label("first_at"),
        sa.func.max(_records.c.started_at + _records.c.duration_ms / 1000).label("last_at"),
        sa.func.coalesce(sa.func.sum(_records.c.prompt_tokens), 0).label("prompt_tokens"),
        sa.func.coalesce(sa.func.sum(_records.c.completion_tokens), 0).label("completion_tokens"),
        sa.func.max(_records.c.release).label("release"),
        *ends,
    )
    found = grouped.where(of_scenario, window, named).group_by(_records.c.session).subquery()
    last, other = _records.alias("last"), _records.alias("other")
    same = sa.select(other.c.seq).where(other.c.scenario == scenario, other.c.session == found.c.session)
    query = sa.select(
        found,
        last.c.model,
        sa.exists(same.where(other.c.seq < found.c.oldest)).label("older"),
        _sessions.c.adapter,
        sa.func.coalesce(_sessions.c.release, found.c.release).label("ran"),
    )
    query = query.join(last, last.c.seq == found.c.newest)
    query = query.outerjoin(_sessions, sa.and_(_sessions.c.scenario == scenario, _sessions.c.id == found.c.session))
    if top is not None:
        query = query.where(~sa.exists(same.where(other.c.seq >= top)))  # a page before this one has it
    rows = tx.execute(query.order_by(found.c.newest.desc()).limit(limit)).mappings().all()
    given = _reported(tx, scenario, [row["session"] for row in rows], since=min((row["oldest"] for row in rows), default=0))
    return [(row["newest"], _summary(row, *given.get(row["session"], (0, None)))) for row in rows]


def _summary(row: sa.RowMapping, reports: int, score: float | None) -> Summary:
    return Summary(
        id=row["session"],
        adapter=row["adapter"],
        release=row["ran"],
        model=row["model"],
        records=row["records"],
        whole=not row["older"],
        first_at=row["first_at"],
        last_at=row["last_at"],
        prompt_tokens=int(row["prompt_tokens"]),
        completion_tokens=int(row["completion_tokens"]),
        ends={end.value: int(row[f"end_{end.value}"]) for end in End if row[f"end_{end.value}"]},
        reports=reports,
        score=score,
    )


def _reported(tx: sa.Connection, scenario: str, sessions: Sequence[str], *, since: int) -> dict[str, tuple[int, float | None]]:
    """By session, how many reports quote a record of it, and the newest score."""
    query = sa.select(_records.c.session, _reports.c.seq, _reports.c.score).distinct()
    query = query.join(_quoted, _quoted.c.record == _records.c.id).join(_reports, _reports.c.id == _quoted.c.report)
    query = query.where(_records.c.scenario == scenario, _records.c.session.in_(sessions), _records.c.seq >= since)
    found: dict[str, tuple[int, float | None]] = {}
    for session, _, score in tx.execute(query.order_by(_reports.c.seq)):
        count, newest = found.get(session, (0, None))
        found[session] = count + 1, newest if score is None else score
    return found
