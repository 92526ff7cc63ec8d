"""The read side of experience."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from reef.errors import NotFound
from reef.experience import reports, schema, session_list, tombstones
from reef.experience.reader import ContentGone, Reader
from reef.types import Origin, Record, Report

_records, _reports = schema.records, schema.reports


@dataclass(frozen=True, slots=True)
class Unlearned:
    """A record that a recipe has not consumed."""

    position: int
    """In the log."""
    id: str
    session: str
    ended_at: float
    """Unix seconds."""


class ExperienceStore:
    """Reads what the writer appended. Safe to use from several threads.

    Records that come from one call share the messages they have in common: copy before changing one.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def record(self, record: str) -> Record:
        """One record by its receipt.

        Raises:
            Gone: retention dropped its content.
            NotFound: there is none.
        """
        found = self._load_records(sa.select(_records).where(_records.c.id == record, _records.c.gone_at.is_(None)))
        if not found:
            raise self._missing(record)
        return found[0]

    def scenario_of(self, record: str) -> str:
        """The scenario of a record, whether or not it still has its content.

        Raises:
            NotFound: there is none.
        """
        with self._engine.connect() as tx:
            found = tx.execute(sa.select(_records.c.scenario).where(_records.c.id == record)).scalar()
        if found is None:
            raise self._missing(record)
        return found

    def records(
        self,
        scenario: str,
        *,
        session: str | None = None,
        origin: Origin | None = None,
        candidate: str | None = None,
        after: int | str = 0,
        newest: bool = False,
        limit: int = 100,
    ) -> list[Record]:
        """Records of a scenario that have their content, in the order they were stored.

        Args:
            candidate: only those that were made by this one, on canary.
            after: skip up to here: a receipt, or a position in the log.
            newest: the last ``limit`` of them instead of the first.

        Raises:
            NotFound: ``after`` is a receipt that does not exist.
        """
        query = sa.select(_records).where(_records.c.scenario == scenario, _records.c.gone_at.is_(None))
        if session is not None:
            query = query.where(_records.c.session == session)
        if origin is not None:
            query = query.where(_records.c.origin == origin.value)
        if candidate is not None:
            query = query.where(_records.c.candidate == candidate)
        order = _records.c.seq.desc() if newest else _records.c.seq
        return self._load_records(query.where(_records.c.seq > self._position(after)).order_by(order).limit(limit))

    def session_records(self, scenario: str, session: str) -> list[Record]:
        """Every record of one agent run that has its content, oldest first."""
        query = sa.select(_records).where(_records.c.scenario == scenario, _records.c.session == session)
        return self._load_records(query.where(_records.c.gone_at.is_(None)).order_by(_records.c.seq))

    def session_part(
        self, scenario: str, session: str, *, after: str = "", limit: int, overlap: int = 0
    ) -> tuple[list[Record], list[Record]]:
        """Some records of one agent run that have their content, oldest first, and before them some that came just before.

        Args:
            after: the receipt after which to go on; empty: from the start.
            limit: how many, at most.
            overlap: how many of those up to ``after``.

        Raises:
            NotFound: ``after`` is a receipt that does not exist.
        """
        position = self._position(after or 0)
        query = sa.select(_records).where(_records.c.scenario == scenario, _records.c.session == session)
        query = query.where(_records.c.gone_at.is_(None))
        older = query.where(_records.c.seq <= position).order_by(_records.c.seq.desc()).limit(overlap).subquery()
        newer = query.where(_records.c.seq > position).order_by(_records.c.seq).limit(limit).subquery()
        with self._engine.connect() as tx:
            before = tx.execute(sa.select(sa.func.count()).select_from(older)).scalar_one()
        found = self._load_records(sa.select(sa.union_all(sa.select(older), sa.select(newer)).subquery()))
        return found[:before], found[before:]

    def sessions(self, scenario: str, *, limit: int = 50, before: int | None = None) -> session_list.Page:
        """The newest agent runs of a scenario, the one with the newest record first.

        The work is bounded: a page is made from the newest 10,000 records of the scenario, as far as they are among the newest 100,000 of
        the log. A session that began before them is counted from there on only, and says so; a page may have fewer sessions than
        asked for, or none, though an older one has more.

        Args:
            before: where the page before this one says to go on.
        """
        with self._engine.connect() as tx:
            return session_list.page(tx, scenario, limit=limit, before=before)

    def session(self, scenario: str, session: str) -> session_list.Summary:
        """One agent run in one line, by its newest 10,000 records.

        Raises:
            NotFound: it has no records.
        """
        with self._engine.connect() as tx:
            found = session_list.one(tx, scenario, session)
        if found is None:
            raise NotFound(
                f"session {session} of scenario {scenario} has no records", hint=f"`reef sessions -s {scenario}` lists those it has."
            )
        return found

    def session_reports(self, scenario: str, session: str, *, limit: int = 100) -> list[Report]:
        """The newest reports that quote an agent run or one of its records, oldest first."""
        query = sa.select(_reports).where(session_list.reports_of(scenario, session))
        return self._load_reports(query.order_by(_reports.c.seq.desc()).limit(limit))[::-1]

    def report(self, report: str) -> Report:
        """One report.

        Raises:
            NotFound: there is none.
        """
        found = self._load_reports(sa.select(_reports).where(_reports.c.id == report))
        if not found:
            raise NotFound(f"there is no report {report}", hint="POST /reef/report answers with the id.")
        return found[0]

    def reports(self, scenario: str, *, limit: int = 100) -> list[Report]:
        """The newest reports of a scenario, newest first."""
        return self._load_reports(sa.select(_reports).where(_reports.c.scenario == scenario).order_by(_reports.c.seq.desc()).limit(limit))

    def unconsumed_reports(self, scenario: str, recipe: str, *, limit: int = 100) -> list[Report]:
        """Reports that ``recipe`` has not consumed, oldest first."""
        used = schema.consumptions
        consumed = sa.exists().where(used.c.report == _reports.c.id, used.c.recipe == recipe)
        query = sa.select(_reports).where(_reports.c.scenario == scenario, ~consumed).order_by(_reports.c.seq).limit(limit)
        return self._load_reports(query)

    def newest_position(self) -> int:
        """Where the log ends: the position of the newest record of all scenarios."""
        with self._engine.connect() as tx:
            return tx.execute(sa.select(sa.func.max(_records.c.seq))).scalar() or 0

    def unlearned(self, scenario: str, recipe: str, *, after: int = 0, limit: int = 1000) -> list[Unlearned]:
        """Records of users' sessions that ``recipe`` has not consumed, in the order they were stored: for recipes that need no reports.

        Args:
            after: a position in the log before which there is none.
        """
        used = schema.consumptions
        consumed = sa.exists().where(used.c.report == _records.c.id, used.c.recipe == recipe)
        ended = (_records.c.started_at + _records.c.duration_ms / 1000).label("ended_at")
        query = sa.select(_records.c.seq, _records.c.id, _records.c.session, ended)
        query = query.where(_records.c.scenario == scenario, _records.c.seq > after, _records.c.session.is_not(None))
        query = query.where(_records.c.origin == Origin.USER.value, _records.c.gone_at.is_(None), ~consumed)
        with self._engine.connect() as tx:
            return [Unlearned(*row) for row in tx.execute(query.order_by(_records.c.seq).limit(limit))]

    def report_records(self, report: str) -> list[Record]:
        """The records that a report quotes and that have their content, oldest first."""
        quoted = sa.select(schema.report_references.c.record).where(schema.report_references.c.report == report)
        return self._load_records(sa.select(_records).where(_records.c.id.in_(quoted), _records.c.gone_at.is_(None)))

    def learned_from(self, report: str, *, recipe: str) -> set[str]:
        """Those of a report's records that ``recipe`` has made a candidate of: another report that quotes them was consumed for one."""
        mine, others, used = schema.report_references.alias(), schema.report_references.alias(), schema.consumptions
        query = sa.select(mine.c.record).distinct().where(mine.c.report == report)
        query = query.join_from(mine, others, others.c.record == mine.c.record).join(used, used.c.report == others.c.report)
        with self._engine.connect() as tx:
            return set(tx.execute(query.where(used.c.recipe == recipe, used.c.candidate.is_not(None))).scalars())

    def newest_release(self, report: str) -> int | None:
        """The newest release that the records a report quotes were made with; None where no client said one."""
        quoted = schema.report_references.join(schema.records, schema.report_references.c.record == schema.records.c.id)
        query = sa.select(sa.func.max(schema.records.c.release)).select_from(quoted).where(schema.report_references.c.report == report)
        with self._engine.connect() as connection:
            return connection.execute(query).scalar_one()

    def counts(self) -> dict[str, int]:
        """How much there is."""
        tables = {"records": _records, "reports": _reports, "sessions": schema.sessions}
        with self._engine.connect() as tx:
            return {name: tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for name, table in tables.items()}

    def _missing(self, record: str) -> NotFound:
        with self._engine.connect() as tx:
            row = tx.execute(sa.select(*tombstones.KEPT).where(_records.c.id == record)).mappings().first()
        if row is None:
            return NotFound(
                f"there is no record {record}", hint="A receipt is the x-reef-agent-record-id of an answer that reached its end."
            )
        return tombstones.gone(row)

    def _position(self, after: int | str) -> int:
        if isinstance(after, int):
            return after
        with self._engine.connect() as tx:
            found = tx.execute(sa.select(_records.c.seq).where(_records.c.id == after)).scalar()
        if found is None:
            raise NotFound(f"there is no record {after}", hint="Give `after` the id of the last record you have.")
        return found

    def _load_reports(self, query: sa.Select[Any]) -> list[Report]:
        with self._engine.connect() as tx:
            return reports.load(tx, tx.execute(query).mappings().all())

    def _load_records(self, query: sa.Select[Any]) -> list[Record]:
        """The records of a query in the order they were stored."""
        with self._engine.connect() as tx:
            rows = tx.execute(query).all()
            reader = Reader(tx)
            reader.add(rows)
            found = []
            for row in sorted(rows, key=lambda row: row.seq):
                with contextlib.suppress(ContentGone):  # since the query
                    found.append(reader.record(row._mapping))
            return found
