"""The read side of experience."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from reef.errors import NotFound
from reef.experience import reports, schema
from reef.experience.reader import Reader
from reef.types import Origin, Record, Report

_records, _reports = schema.records, schema.reports


class ExperienceStore:
    """Reads what the writer appended. Safe to use from several threads.

    Records that come from one call share the messages they have in common: copy before changing one.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def record(self, record: str) -> Record:
        """One record by its receipt.

        Raises:
            NotFound: there is none.
        """
        found = self._load_records(sa.select(_records).where(_records.c.id == record))
        if not found:
            raise NotFound(
                f"there is no record {record}", hint="A receipt is the x-reef-agent-record-id of an answer that reached its end."
            )
        return found[0]

    def records(
        self,
        scenario: str,
        *,
        session: str | None = None,
        origin: Origin | None = None,
        after: int | str = 0,
        newest: bool = False,
        limit: int = 100,
    ) -> list[Record]:
        """Records of a scenario in the order they were stored.

        Args:
            after: skip up to here: a receipt, or a position in the log.
            newest: the last ``limit`` of them instead of the first.

        Raises:
            NotFound: ``after`` is a receipt that does not exist.
        """
        query = sa.select(_records).where(_records.c.scenario == scenario)
        if session is not None:
            query = query.where(_records.c.session == session)
        if origin is not None:
            query = query.where(_records.c.origin == origin.value)
        order = _records.c.seq.desc() if newest else _records.c.seq
        return self._load_records(query.where(_records.c.seq > self._position(after)).order_by(order).limit(limit))

    def session_records(self, scenario: str, session: str) -> list[Record]:
        """Every record of one agent run, oldest first."""
        query = sa.select(_records).where(_records.c.scenario == scenario, _records.c.session == session)
        return self._load_records(query.order_by(_records.c.seq))

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
            return [reader.record(row._mapping) for row in sorted(rows, key=lambda row: row.seq)]
