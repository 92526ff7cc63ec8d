"""What was reported on a canary and on the head beside it, and where that leads.

Everything is read again from the log each time: the same reports lead to the same end, so whoever judges a canary may be killed at any
moment and keeps nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

from reef.evaluation.live import LiveTerms, Scored, weigh
from reef.experience.reports import parts
from reef.experience.schema import records, report_references, reports
from reef.releases.rollout import Rollout
from reef.types import Decision, Origin, Verdict


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a canary stands."""

    verdict: Verdict
    decided: bool
    """Whether it is at its end: the reports decide, or its time is over."""


def standing(engine: sa.Engine, canary: Rollout, *, now: float | None = None) -> Standing:
    """Judge a canary by the reports there are.

    Args:
        now: Unix seconds.
    """
    now = time.time() if now is None else now
    plan = canary.plan
    terms = LiveTerms(alpha=plan.alpha, min_effect=plan.min_effect, min_reports=plan.min_reports)
    test = weigh(terms, scored(engine, canary))
    seconds = max(0.0, now - canary.started_at)
    over = test.decision is None and seconds >= plan.max_s
    verdict = test.verdict(seconds=seconds, otherwise=f"undecided after {plan.max_s / 86_400:g} days" if over else "")
    return Standing(verdict, over or verdict.decision is not Decision.INCONCLUSIVE)


def scored(engine: sa.Engine, canary: Rollout) -> list[Scored]:
    """The reports that count, in the order they arrived: the first with a score of each session that began since the canary did.

    A report counts for a side when all that it quotes ran there, for a user. On the side of the head are sessions that could have been
    drawn: of a harness, those on the release that the candidate was made for; of weights and routing, those that were named by their
    clients, for one that is found by its history only later could not be.
    """
    candidate, began = canary.candidate, canary.started_at
    live = (records.c.origin == Origin.USER.value) & (records.c.started_at >= began)
    of_head = records.c.opening.is_(None) if canary.by_session else records.c.release == candidate.base_step
    here = live & (records.c.candidate == candidate.id)
    there = live & records.c.candidate.is_(None) & of_head
    quoted = reports.join(report_references, reports.c.id == report_references.c.report)
    quoted = quoted.join(records, report_references.c.record == records.c.id)
    query = (
        sa.select(
            sa.func.min(reports.c.score).label("score"),
            sa.func.min(records.c.session).label("session"),
            sa.func.max(records.c.session).label("last"),
            sa.func.count().label("quoted"),
            _count(here).label("here"),
            _count(there).label("there"),
        )
        .select_from(quoted)
        .where(reports.c.scenario == candidate.scenario, reports.c.score.is_not(None), reports.c.created_at >= began)
        .group_by(reports.c.seq)
        .order_by(reports.c.seq)
    )
    first: dict[str, Scored] = {}
    with engine.connect() as connection:
        for row in connection.execute(query):
            if row.session == row.last and row.quoted in (row.here, row.there):
                first.setdefault(row.session, Scored(on_candidate=row.here > 0, score=row.score))
        before = _began_before(connection, candidate.scenario, list(first), at=began)
    return [report for session, report in first.items() if session not in before]


def _began_before(connection: sa.Connection, scenario: str, sessions: list[str], *, at: float) -> set[str]:
    """Sessions that were under way when a canary began: what they have of it is not all of them."""
    found: set[str] = set()
    for some in parts(sessions):
        query = sa.select(records.c.session).where(records.c.scenario == scenario, records.c.session.in_(some), records.c.started_at < at)
        found.update(connection.execute(query.distinct()).scalars())
    return found


def _count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))
