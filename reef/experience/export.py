"""Experience as lines, for another deployment, another program or a shelf; :mod:`reef.experience.transfer` takes them in again.

Nothing is held for long: no transaction stays open while a slow reader reads, and no more is in memory than a page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from reef.experience import lines, reports, schema
from reef.experience.reader import ContentGone, Reader
from reef.experience.tombstones import KEPT

PAGE = 20
"""Records read at once: some are megabytes long."""


def export(engine: sa.Engine, *, scenario: str | None = None, session: str | None = None) -> Iterator[bytes]:
    """Every session, record and report, a line each; of all scenarios, or of one, or of one session.

    Of a record whose content retention dropped there is a tombstone in its place: what quotes it is whole elsewhere too. What is stored
    meanwhile may be in it or not, but never a report without the records it quotes. A report on records of several sessions is left out
    where only one of them is asked for.
    """
    with engine.connect() as tx:
        newest = tx.execute(sa.select(sa.func.max(schema.reports.c.seq))).scalar() or 0
    for name in _scenarios(engine) if scenario is None else [scenario]:
        yield from _sessions(engine, name, session)
        yield from _records(engine, name, session)
        yield from _reports(engine, name, session, newest=newest)


def _sessions(engine: sa.Engine, scenario: str, session: str | None) -> Iterator[bytes]:
    table = schema.sessions
    last = ""
    while True:
        query = sa.select(table).where(table.c.scenario == scenario, table.c.id > last)
        if session is not None:
            query = query.where(table.c.id == session)
        with engine.connect() as tx:
            page = [dict(row) for row in tx.execute(query.order_by(table.c.id).limit(500)).mappings()]
        yield from map(lines.of_session, page)
        if len(page) < 500:
            return
        last = page[-1]["id"]


def _records(engine: sa.Engine, scenario: str, session: str | None) -> Iterator[bytes]:
    table = schema.records
    query = sa.select(table).where(table.c.scenario == scenario)
    if session is not None:
        query = query.where(table.c.session == session)
    last = 0
    while True:
        with engine.connect() as tx:
            rows = tx.execute(query.where(table.c.seq > last).order_by(table.c.seq).limit(PAGE)).all()
            page = list(_page(tx, rows))
        yield from page
        if len(rows) < PAGE:
            return
        last = rows[-1].seq


def _page(tx: sa.Connection, rows: Sequence[sa.Row[Any]]) -> Iterator[bytes]:
    reader = Reader(tx)
    reader.add(row for row in rows if row.gone_at is None)
    for row in rows:
        if row.gone_at is None:
            with contextlib.suppress(ContentGone):  # since the query
                yield lines.of_record(reader.record(row._mapping))
                continue
        yield lines.of_tombstone(row._asdict() if row.gone_at is not None else _again(tx, row.id))


def _again(tx: sa.Connection, record: str) -> dict[str, Any]:
    return tx.execute(sa.select(*KEPT).where(schema.records.c.id == record)).one()._asdict()


def _reports(engine: sa.Engine, scenario: str, session: str | None, *, newest: int) -> Iterator[bytes]:
    table, quoted, records = schema.reports, schema.report_references, schema.records
    query = sa.select(table).where(table.c.scenario == scenario, table.c.seq <= newest)
    if session is not None:
        mine = sa.select(quoted.c.report).join(records, records.c.id == quoted.c.record)
        mine = mine.where(records.c.scenario == scenario, records.c.session == session)
        others = sa.select(sa.literal(1)).join_from(quoted, records, records.c.id == quoted.c.record)
        others = others.where(quoted.c.report == table.c.id, records.c.session.is_distinct_from(session))
        query = query.where(table.c.id.in_(mine), ~others.exists())
    last = 0
    while True:
        with engine.connect() as tx:
            rows = tx.execute(query.where(table.c.seq > last).order_by(table.c.seq).limit(200)).mappings().all()
            page = reports.load(tx, rows)
        yield from map(lines.of_report, page)
        if len(rows) < 200:
            return
        last = rows[-1]["seq"]


def _scenarios(engine: sa.Engine) -> list[str]:
    """The scenarios that something is known of. One look into an index for each, however much there is."""
    found = set()
    with engine.connect() as tx:
        for table in (schema.records, schema.reports, schema.sessions):
            last = ""
            while (name := tx.execute(sa.select(sa.func.min(table.c.scenario)).where(table.c.scenario > last)).scalar()) is not None:
                found.add(name)
                last = name
    return sorted(found)
