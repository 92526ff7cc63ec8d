"""Experience from elsewhere taken in: what :mod:`reef.experience.export` gives, and pairs of request and response that others recorded.

An import looks at a whole batch before it stores anything of it: nothing is stored of a batch with a line that cannot be. What is there
already with the same content is counted and passed over, so a file can be imported again after whatever went wrong.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from reef import failpoints, redaction
from reef.errors import Conflict, NotFound, ReefError, StorageError
from reef.experience import burying, jsontext, reports, schema
from reef.experience.database import write
from reef.experience.lines import AnyLine, Line, RecordLine, ReportLine, SessionLine, TombstoneLine
from reef.experience.reader import Reader
from reef.experience.reports import ReportDraft
from reef.experience.tombstones import CONTENT, Digester
from reef.experience.writer import Writer
from reef.types import JSON, Record

PAGE = 20
"""Stored records compared at once: some are megabytes long."""
GROUP = 32
"""Records handed to the writer at once, so that what is being served gets its turn between them."""


@dataclass
class Tally:
    """What became of a batch."""

    stored: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("sessions", "records", "reports"), 0))
    there: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("sessions", "records", "reports"), 0))
    """What was there already."""
    ids: list[str] = field(default_factory=list)
    """Of the records, in the order of the lines."""
    gone: int = 0
    """How many of the stored records are tombstones."""


@dataclass
class _Plan:
    """A batch that was looked at, and is fit to be stored."""

    tally: Tally
    sessions: list[Line] = field(default_factory=list)
    records: list[tuple[Line, Record | TombstoneLine]] = field(default_factory=list)
    reports: list[tuple[Line, ReportDraft]] = field(default_factory=list)


class Importer:
    """Takes lines in.

    Args:
        engine: the database; its tables exist.
        redact: whether the writer takes secrets out; a stored record then equals a line but for them.
    """

    def __init__(self, engine: sa.Engine, writer: Writer, *, redact: bool) -> None:
        self._engine = engine
        self._writer = writer
        self._redact = redact

    async def take(self, batch: Sequence[Line]) -> Tally:
        """Store a batch.

        Raises:
            Conflict: something is there under the same id with other content.
            NotFound: a report quotes what is neither there nor in the batch.
            InvalidRequest: a report quotes nothing.
            StorageError: storing failed midway; the message says how much was stored.
        """
        plan = await asyncio.to_thread(self._look, batch)
        tally = plan.tally
        try:
            if plan.sessions:
                await asyncio.to_thread(self._store_sessions, plan.sessions)
                tally.stored["sessions"] = len(plan.sessions)
            for dead, group in _groups(plan.records):  # in the order of the lines: reports quote in the order of the log
                await (asyncio.to_thread(self._bury, group, tally) if dead else self._store_records(group, tally))
                failpoints.reach("import.records")
            for line, draft in plan.reports:
                try:
                    _, created = await self._writer.report(draft)
                except (Conflict, NotFound) as error:  # since it was looked at
                    raise _at(line, error) from None
                (tally.stored if created else tally.there)["reports"] += 1
                failpoints.reach("import.report")
        except StorageError as error:
            so_far = ", ".join(f"{count} {what}" for what, count in tally.stored.items())
            raise StorageError(f"{error.message}; of this batch {so_far} were stored", hint=error.hint) from error
        return tally

    def _bury(self, group: Sequence[tuple[Line, TombstoneLine]], tally: Tally) -> None:
        try:
            there = burying.bury(self._engine, [value.row(line.scenario) for line, value in group], redact=self._redact)
        except sa.exc.OperationalError as error:
            raise StorageError(f"records could not be stored: {error.orig}", hint="Free disk space or mend the database.") from error
        tally.stored["records"] += len(group) - len(there)
        tally.gone += len(group) - len(there)
        tally.there["records"] += len(there)
        if there:  # since they were looked at
            found = self._read(sorted(there))
            for line, value in group:
                if value.id in there:
                    self._check_same(line, value, found[value.id])

    async def _store_records(self, group: Sequence[tuple[Line, Record]], tally: Tally) -> None:
        results = await asyncio.gather(*(self._writer.record(record) for _, record in group), return_exceptions=True)
        refused: BaseException | None = None
        for (line, record), result in zip(group, results, strict=True):
            if result is None:
                tally.stored["records"] += 1
            elif isinstance(result, StorageError) and await asyncio.to_thread(self._came_meanwhile, line, record):
                tally.there["records"] += 1
            else:
                refused = refused or result
        if refused is not None:
            raise refused

    def _came_meanwhile(self, line: Line, record: Record) -> bool:
        """Whether another import stored the same record since this one looked."""
        try:
            found = self._read([record.id]).get(record.id)
        except sa.exc.SQLAlchemyError:
            return False
        if found is not None:
            self._check_same(line, record, found)
        return found is not None

    def _look(self, batch: Sequence[Line]) -> _Plan:
        """Sort a batch into what is new and what is there."""
        plan = _Plan(Tally())
        known = self._scenarios_of(_names(batch))
        self._look_at_records(batch, known, plan)
        self._look_at_reports(batch, known, plan)
        self._look_at_sessions(batch, plan)
        return plan

    def _look_at_records(self, batch: Sequence[Line], known: dict[str, str], plan: _Plan) -> None:
        new: dict[str, tuple[Line, Record | TombstoneLine]] = {}
        there: list[tuple[Line, Record | TombstoneLine]] = []
        for line in batch:
            if not isinstance(line.value, RecordLine | TombstoneLine):
                continue
            record = line.value.record(line.scenario) if isinstance(line.value, RecordLine) else line.value
            plan.tally.ids.append(record.id)
            if record.id not in known and record.id not in new:
                new[record.id] = line, record
                plan.records.append((line, record))
                continue
            plan.tally.there["records"] += 1
            if line.value.id is None:  # its content is its id
                continue
            if record.id in new:
                before, first = new[record.id]
                self._check_same(line, record, first if isinstance(first, Record) else first.row(before.scenario))
            else:
                there.append((line, record))
        for start in range(0, len(there), PAGE):
            page = there[start : start + PAGE]
            stored = self._read([record.id for _, record in page])
            for line, record in page:
                self._check_same(line, record, stored[record.id])
        known.update({name: line.scenario for name, (line, _) in new.items()})

    def _look_at_reports(self, batch: Sequence[Line], known: dict[str, str], plan: _Plan) -> None:
        drafts = [(line, self._draft(line, line.value, known)) for line in batch if isinstance(line.value, ReportLine)]
        there = self._digests_of([draft.id for _, draft in drafts])
        for line, draft in drafts:
            digest = draft.digest()
            if (found := there.get(draft.id)) is None:
                if draft.session and not draft.quoted:
                    self._check_session(line, draft.session, plan)
                plan.reports.append((line, draft))
                there[draft.id] = digest
            elif found == digest:
                plan.tally.there["reports"] += 1
            else:
                raise _other(line, "report", draft.id)

    def _draft(self, line: Line, report: ReportLine, known: dict[str, str]) -> ReportDraft:
        try:
            draft = report.draft(line.scenario, redact=self._redact)
        except ReefError as error:
            raise _at(line, error) from None
        for reference in report.references:
            if known.get(reference) != line.scenario:
                hint = "Import the records first, or in the same batch."
                raise _at(line, NotFound(f"there is no record {reference} in scenario {line.scenario}", hint=hint))
        return draft

    def _look_at_sessions(self, batch: Sequence[Line], plan: _Plan) -> None:
        table = schema.sessions
        found: dict[tuple[str, str], SessionLine] = {}
        for line in batch:
            value = line.value
            if not isinstance(value, SessionLine):
                continue
            key = line.scenario, value.id
            there: Any = found.get(key)
            if there is None:
                query = sa.select(table.c.adapter, table.c.release, table.c.started_at)
                with self._engine.connect() as tx:
                    there = tx.execute(query.where(table.c.scenario == line.scenario, table.c.id == value.id)).first()
            if there is None:
                found[key] = value
                plan.sessions.append(line)
                continue
            same_start = value.started_at in (None, there.started_at)
            if (there.adapter, there.release) != (value.adapter, value.release) or not same_start:
                raise _other(line, "session", value.id)
            plan.tally.there["sessions"] += 1

    def _check_session(self, line: Line, session: str, plan: _Plan) -> None:
        if any((of.scenario, record.session) == (line.scenario, session) for of, record in plan.records):
            return
        table = schema.records
        query = sa.select(table.c.id).where(table.c.scenario == line.scenario, table.c.session == session).limit(1)
        with self._engine.connect() as tx:
            if tx.execute(query).first() is None:
                raise _at(line, NotFound(f"session {session} of scenario {line.scenario} has no records", hint="Import its records first."))

    def _check_same(self, line: Line, record: Record | TombstoneLine, found: Record | dict[str, Any]) -> None:
        """Refuse a line that says something else than the record that is there, or was until retention dropped its content.

        Raises:
            Conflict: it does.
        """
        if isinstance(record, TombstoneLine):
            if what := burying.differs(record.row(line.scenario), found, redact=self._redact):
                raise _other(line, "record", record.id, what=what)
            return
        assert isinstance(line.value, RecordLine)
        said = line.value.model_fields_set - {"kind", "id", "usage"} | {"scenario"}
        if not isinstance(found, Record):
            if Digester().content(record) != bytes(found["content_digest"]):
                raise _other(line, "record", record.id)
            said -= CONTENT
        for name in sorted(said):
            new, old = getattr(record, name), getattr(found, name) if isinstance(found, Record) else found[name]
            if name == "session" and new is None:  # found by structure when it was stored
                continue
            if not self._same(jsontext.dumps_sorted(new), jsontext.dumps_sorted(old)):
                raise _other(line, "record", record.id, what=name)

    def _same(self, new: bytes, old: bytes) -> bool:
        """Whether texts are equal, but for what is redacted. To look for secrets takes much longer than to compare."""
        return new == old or (self._redact and redaction.redact(new) == redaction.redact(old))

    def _read(self, names: list[str]) -> dict[str, Record | dict[str, Any]]:
        """Records that are there, read together: they have much in common. Of one whose content is gone, its row."""
        with self._engine.connect() as tx:
            rows = tx.execute(sa.select(schema.records).where(schema.records.c.id.in_(names))).all()
            reader = Reader(tx)
            reader.add(rows)
            return {row.id: row._asdict() if row.gone_at is not None else reader.record(row._mapping) for row in rows}

    def _scenarios_of(self, names: Iterable[str]) -> dict[str, str]:
        """The scenario of each record that is there."""
        table = schema.records
        found: dict[str, str] = {}
        with self._engine.connect() as tx:
            for part in reports.parts(list(dict.fromkeys(names))):
                found.update(
                    {row.id: row.scenario for row in tx.execute(sa.select(table.c.id, table.c.scenario).where(table.c.id.in_(part)))}
                )
        return found

    def _digests_of(self, names: list[str]) -> dict[str, bytes]:
        """The content of each report that is there."""
        table = schema.reports
        found: dict[str, bytes] = {}
        with self._engine.connect() as tx:
            for part in reports.parts(names):
                found.update(
                    {row.id: bytes(row.digest) for row in tx.execute(sa.select(table.c.id, table.c.digest).where(table.c.id.in_(part)))}
                )
        return found

    def _store_sessions(self, batch: Sequence[Line]) -> None:
        insert = postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert
        rows = [{"scenario": line.scenario, "started_at": time.time(), **_without_none(line.value)} for line in batch]
        try:
            with write(self._engine).begin() as tx:
                for row in rows:
                    tx.execute(insert(schema.sessions).values(**row).on_conflict_do_nothing())
                failpoints.reach("import.sessions.inserted")
            failpoints.reach("import.sessions.committed")
        except sa.exc.OperationalError as error:
            raise StorageError(f"sessions could not be stored: {error.orig}", hint="Free disk space or mend the database.") from error


def _groups(records: Sequence[tuple[Line, Any]]) -> Iterator[tuple[bool, Sequence[tuple[Line, Any]]]]:
    """What is stored together: some records, or some tombstones."""
    for dead, members in itertools.groupby(records, key=lambda member: isinstance(member[1], TombstoneLine)):
        run = list(members)
        for start in range(0, len(run), GROUP):
            yield dead, run[start : start + GROUP]


def _names(batch: Sequence[Line]) -> Iterator[str]:
    """The ids of records that a batch brings or quotes."""
    for line in batch:
        if isinstance(line.value, RecordLine):
            yield line.value.named(line.scenario)
        elif isinstance(line.value, TombstoneLine):
            yield line.value.id
        elif isinstance(line.value, ReportLine):
            yield from line.value.references


def _without_none(line: AnyLine) -> dict[str, JSON]:
    return line.model_dump(exclude={"kind", "scenario"}, exclude_none=True)


def _at(line: Line, error: ReefError) -> ReefError:
    """The same error, saying in which line."""
    return type(error)(f"line {line.number}: {error.message}", hint=error.hint)


def _other(line: Line, kind: str, name: str, *, what: str = "content") -> Conflict:
    return Conflict(f"line {line.number}: {kind} {name} is there with other {what}", hint="Give it another id, or leave it out.")
