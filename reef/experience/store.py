"""The read side of experience."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
import zstandard
from sqlalchemy import RowMapping

from reef.errors import NotFound
from reef.experience import dialects, jsontext, reports, schema
from reef.types import JSON, End, Origin, Record, Report

_records, _reports, _nodes, _blobs = schema.records, schema.reports, schema.nodes, schema.blobs


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
        tables = {"records": _records, "reports": _reports, "sessions": schema.sessions, "turns": _nodes}
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
            # from the newest, whose prompt is the longest: the others are found on its way to the root
            rows = sorted(tx.execute(query).mappings(), key=lambda row: row["seq"], reverse=True)
            reader = _Reader(tx)
            return [_record(row, reader) for row in rows][::-1]


class _Reader:
    """Puts turns and envelopes together, reading each from the database once."""

    def __init__(self, tx: sa.Connection) -> None:
        self._tx = tx
        self._turns: dict[bytes, tuple[bytes | None, JSON]] = {}
        self._decompress = zstandard.ZstdDecompressor().decompress

    def turns(self, leaf: bytes, *, below: bytes | None = None) -> list[JSON]:
        """The turns from the first one, or from the one under ``below``, to ``leaf``."""
        found = []
        node: bytes | None = leaf
        while node != below and node is not None:
            if node not in self._turns:
                self._read_up(node)
            node, message = self._turns[node]
            found.append(message)
        return found[::-1]

    def blob(self, name: bytes) -> JSON:
        """A fresh copy of what a blob holds."""
        return self.unpack(self._tx.execute(sa.select(_blobs.c.data).where(_blobs.c.digest == name)).scalar_one())

    def unpack(self, data: bytes) -> JSON:
        """The JSON in compressed bytes."""
        return jsontext.loads(self._decompress(data))

    def answer(self, leaf: bytes, *, prompt: bytes | None) -> list[JSON]:
        """The turns answered under ``prompt``, of which ``leaf`` is the last."""
        node: bytes | None = leaf
        while node not in self._turns and node != prompt and node is not None:  # one or a few: not worth the whole path
            query = sa.select(_nodes.c.parent, _blobs.c.data).where(_nodes.c.id == node, _blobs.c.digest == _nodes.c.body)
            parent, data = self._tx.execute(query).one()
            self._turns[node] = parent, self.unpack(data)
            node = parent
        return self.turns(leaf, below=prompt)

    def _read_up(self, node: bytes) -> None:
        """Read the nodes from ``node`` to the root."""
        path = sa.select(_nodes.c.id, _nodes.c.parent, _nodes.c.body).where(_nodes.c.id == node).cte(recursive=True)
        path = path.union_all(sa.select(_nodes.c.id, _nodes.c.parent, _nodes.c.body).where(_nodes.c.id == path.c.parent))
        query = sa.select(path.c.id, path.c.parent, _blobs.c.data).where(_blobs.c.digest == path.c.body)
        for name, parent, data in self._tx.execute(query):
            if name not in self._turns:
                self._turns[name] = parent, self.unpack(data)


def _record(row: RowMapping, reader: _Reader) -> Record:
    request = reader.blob(row["request_envelope"])
    dialect = dialects.named(row["dialect"])
    if row["prompt"] is not None:
        dialect.put_prompt(request, reader.turns(row["prompt"]))
    response = None if row["response_envelope"] is None else reader.unpack(row["response_envelope"])
    if response is not None and row["answer"] is not None:
        dialect.put_answer(response, reader.answer(row["answer"], prompt=row["prompt"]))
    return Record(
        id=row["id"],
        scenario=row["scenario"],
        session=row["session"],
        release=row["release"],
        origin=Origin(row["origin"]),
        dialect=row["dialect"],
        upstream=row["upstream"],
        model=row["model"],
        end=End(row["end"]),
        status=row["status"],
        streamed=bool(row["streamed"]),
        request=request,
        response=response,
        usage=dialects.token_counts(response),
        started_at=row["started_at"],
        first_byte_ms=row["first_byte_ms"],
        duration_ms=row["duration_ms"],
        error=row["error"],
    )
