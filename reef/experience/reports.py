"""Reports: feedback that quotes receipts, stored once for each id."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import RowMapping

from reef import failpoints
from reef.errors import Conflict, InvalidRequest, NotFound
from reef.experience import ids, jsontext, schema
from reef.redaction import redact
from reef.types import JSON, Report

MAX_REFERENCES = 10_000


@dataclass(frozen=True, slots=True)
class ReportDraft:
    """A report before it is stored.

    Raises:
        InvalidRequest: neither or both of ``references`` and ``session``, or a score that is not a finite number.
    """

    scenario: str
    references: tuple[str, ...] = ()
    session: str | None = None
    """Quotes every record of the session instead of single receipts."""
    score: float | None = None
    feedback: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    id: str = ""
    """Empty: a new id is made."""
    redact: bool = True
    """Take secrets out of feedback and metadata before they are stored."""
    quoted: tuple[str, ...] = ()
    """Of an imported report on a session: the records it quoted when it was made. Else those the session has now."""
    created_at: float | None = None
    """Of an imported report: when it was made. Else now."""

    def __post_init__(self) -> None:
        if bool(self.references) == (self.session is not None):
            raise InvalidRequest(
                "a report quotes either `references` or a `session`",
                hint="`references` are receipts, the x-reef-agent-record-id of the answers it grades.",
            )
        if len(self.references) > MAX_REFERENCES:
            raise InvalidRequest(f"a report quotes at most {MAX_REFERENCES} receipts", hint="Report on the session instead.")
        if self.score is not None and (isinstance(self.score, bool) or not math.isfinite(self.score)):
            raise InvalidRequest(f"score must be a finite number, not {self.score}", hint="0 is failed, 1 is perfect.")

    def digest(self) -> bytes:
        """Equal for equal content, whatever the id. What is redacted does not count: an export no longer has it."""
        score = None if self.score is None else float(self.score)
        content = [self.scenario, sorted(set(self.references)), self.session, score, self.feedback, dict(self.metadata)]
        text = jsontext.dumps_sorted(content)
        return ids.digest(redact(text) if self.redact else text)


def insert(tx: sa.Connection, draft: ReportDraft) -> tuple[Report, bool]:
    """Store a report inside a transaction; see :meth:`reef.experience.writer.Writer.report`."""
    digest = draft.digest()
    if draft.id:
        found = tx.execute(sa.select(schema.reports).where(schema.reports.c.id == draft.id)).mappings().first()
        if found is not None:
            if bytes(found["digest"]) != digest:
                raise Conflict(f"report {draft.id} is there with other content", hint="Send a new report under a new id.")
            return load(tx, [found])[0], False
    report = Report(
        id=draft.id or ids.report_id(),
        scenario=draft.scenario,
        references=_references(tx, draft),
        session=draft.session,
        score=None if draft.score is None else float(draft.score),
        feedback=_kept(draft.feedback, draft=draft),
        metadata=_kept(dict(draft.metadata), draft=draft),
        created_at=time.time() if draft.created_at is None else draft.created_at,
    )
    values = {name: getattr(report, name) for name in ("id", "scenario", "session", "score", "feedback", "metadata", "created_at")}
    tx.execute(schema.reports.insert().values(**values, digest=digest))
    failpoints.reach("report.half")
    quoted = [{"report": report.id, "position": position, "record": record} for position, record in enumerate(report.references)]
    tx.execute(schema.report_references.insert(), quoted)
    failpoints.reach("report.inserted")
    return report, True


def load(tx: sa.Connection, rows: Sequence[RowMapping]) -> list[Report]:
    """Rows of ``reports`` with the receipts they quote."""
    quoted: dict[str, list[str]] = {row["id"]: [] for row in rows}
    table = schema.report_references
    for part in parts(list(quoted)):
        query = sa.select(table.c.report, table.c.record).where(table.c.report.in_(part)).order_by(table.c.report, table.c.position)
        for report, record in tx.execute(query):
            quoted[report].append(record)
    return [
        Report(
            id=row["id"],
            scenario=row["scenario"],
            references=tuple(quoted[row["id"]]),
            session=row["session"],
            score=row["score"],
            feedback=row["feedback"],
            metadata=row["metadata"],
            created_at=row["created_at"],
        )
        for row in rows
    ]


def _kept(value: JSON, *, draft: ReportDraft) -> Any:
    return jsontext.loads(redact(jsontext.dumps(value))) if draft.redact else value


def _references(tx: sa.Connection, draft: ReportDraft) -> tuple[str, ...]:
    """The receipts a draft quotes, oldest first."""
    table = schema.records
    query = sa.select(table.c.id, table.c.seq).where(table.c.scenario == draft.scenario)
    if draft.session is not None and not draft.quoted:
        found = tuple(tx.execute(query.where(table.c.session == draft.session).order_by(table.c.seq)).scalars())
        if not found:
            raise NotFound(
                f"session {draft.session} of scenario {draft.scenario} has no records",
                hint="Send x-reef-session with the requests, and x-reef-scenario with the report.",
            )
        return found
    sequence = {}
    references = draft.references or draft.quoted
    for part in parts(list(dict.fromkeys(references))):
        sequence.update({row.id: row.seq for row in tx.execute(query.where(table.c.id.in_(part)))})
    for reference in references:
        if reference not in sequence:
            raise NotFound(
                f"there is no record {reference} in scenario {draft.scenario}",
                hint="A receipt is the x-reef-agent-record-id of an answer that reached its end, in the scenario x-reef-scenario names.",
            )
    return tuple(sorted(sequence, key=sequence.__getitem__))


def parts(names: list[str], *, size: int = 500) -> list[list[str]]:
    """Slices small enough for the databases' bound on parameters."""
    return [names[start : start + size] for start in range(0, len(names), size)]
