"""Experience as lines of JSON: what `reef export` writes and `reef import` reads. ``kind`` says what a line is.

A line that an export wrote holds all there is. Others may say less: a pair of ``request`` and ``response`` is a record, and what it leaves
out is taken from the pair or has a default.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, StringConstraints, ValidationError, model_validator

from reef.errors import InvalidLine, InvalidRequest
from reef.experience import jsontext, tombstones
from reef.experience.database import DIGEST_BYTES
from reef.experience.dialects import token_counts
from reef.experience.ids import digest
from reef.experience.reports import MAX_REFERENCES, ReportDraft
from reef.types import JSON, End, Origin, Record, Report, TokenTrace

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,127}$")]
"""Of a scenario or session."""
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=65_536)]
"""PostgreSQL keeps no NUL in a text."""
Count = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**32)]
Step = Annotated[int, Field(ge=1, lt=2**31)]


class _Line(BaseModel):
    """Types are taken strictly: what is stored is what the line says."""

    model_config = ConfigDict(extra="forbid", strict=True)

    scenario: Name | None = None


class TokensLine(BaseModel):
    """The tokens of an exchange; see :class:`reef.types.TokenTrace`."""

    model_config = ConfigDict(extra="forbid")

    prompt_ids: list[TokenId]
    completion_ids: list[TokenId]
    logprobs: list[Annotated[float, Field(le=0, ge=-3e38)]]
    served: list[Annotated[Text, StringConstraints(max_length=256)]] = Field(default_factory=list)
    starts: list[Count] = Field(default_factory=list)

    @model_validator(mode="after")
    def _spans_of_what_was_said(self) -> Self:
        if len(self.served) != len(self.starts) or (self.starts and self.starts[0] != 0):
            raise ValueError("`served` and `starts` belong together, and the first start is 0")
        if any(one >= other for one, other in pairwise([*self.starts, len(self.completion_ids)])):
            raise ValueError("`starts` must rise, and be below the number of completion_ids")
        return self

    def trace(self) -> TokenTrace:
        """The trace it stands for, as exact as it is stored."""
        logprobs = tuple(array("f", self.logprobs))
        return TokenTrace(tuple(self.prompt_ids), tuple(self.completion_ids), logprobs, tuple(self.served), tuple(self.starts))


class _ExchangeLine(_Line):
    """What is known of an exchange whether its content is there or gone."""

    id: Id | None = None
    session: Name | None = None
    release: Step | None = None
    candidate: Id | None = None
    origin: Annotated[Origin, Strict(False)] = Origin.USER
    dialect: Annotated[str, StringConstraints(pattern=r"^[a-z_.-]{1,64}$")] = "chat"
    upstream: Text = ""
    model: Annotated[Text, StringConstraints(max_length=256)] | None = None
    end: Annotated[End, Strict(False)] = End.COMPLETE
    status: Annotated[int, Field(ge=0, le=999)] = 200
    streamed: bool | None = None
    started_at: Seconds | None = None
    first_byte_ms: Milliseconds | None = None
    duration_ms: Milliseconds = 0.0
    error: Text = ""


class RecordLine(_ExchangeLine):
    """One exchange; see :class:`reef.types.Record`."""

    kind: Literal["record"] = "record"
    request: dict[str, Any]
    response: JSON
    usage: dict[str, Annotated[int, Field(ge=0, lt=2**63)]] | None = None
    tokens: TokensLine | None = None

    def named(self, scenario: str) -> str:
        """Its id. Without one it is named by its content, so that the same line again is the same record."""
        if self.id is not None:
            return self.id
        content = self.model_dump(mode="python", include=self.model_fields_set - {"kind", "scenario"})
        at = int(((self._answered_at() if self.started_at is None else self.started_at) or 0) * 1000)
        return f"rec_{at:012x}{digest(jsontext.dumps_sorted([scenario, content])).hex()[:32]}"

    def record(self, scenario: str) -> Record:
        """The record it stands for."""
        model = self.request.get("model") if self.model is None else self.model
        at = self._answered_at() if self.started_at is None else self.started_at
        return Record(
            id=self.named(scenario),
            scenario=scenario,
            session=self.session,
            release=self.release,
            candidate=self.candidate,
            origin=self.origin,
            dialect=self.dialect,
            upstream=self.upstream,
            model=model[:256].replace("\0", "").encode("utf-8", "replace").decode() if isinstance(model, str) else "",
            end=self.end,
            status=self.status,
            streamed=bool(self.request.get("stream")) if self.streamed is None else self.streamed,
            request=self.request,
            response=self.response,
            usage=token_counts(self.response) if self.usage is None else self.usage,
            started_at=time.time() if at is None else at,
            first_byte_ms=self.first_byte_ms,
            duration_ms=self.duration_ms,
            error=self.error,
            tokens=None if self.tokens is None else self.tokens.trace(),
        )

    def _answered_at(self) -> float | None:
        """When the provider says it answered; some do."""
        told = self.response if isinstance(self.response, dict) else {}
        for key in ("created", "created_at"):
            if isinstance(at := told.get(key), int | float) and not isinstance(at, bool) and 0 < at < 1e11:
                return float(at)
        return None


class TombstoneLine(_ExchangeLine):
    """What is left of an exchange whose content retention dropped; see :mod:`reef.experience.tombstones`."""

    kind: Literal["tombstone"]
    id: Id
    started_at: Seconds
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    gone_at: Seconds
    content_digest: Annotated[str, StringConstraints(pattern=rf"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$")]

    def row(self, scenario: str) -> dict[str, Any]:
        """The columns it stands for, of those that are kept."""
        own = self.model_dump(exclude={"kind", "scenario"})
        own |= {"origin": self.origin.value, "end": self.end.value, "model": self.model or "", "streamed": bool(self.streamed)}
        return {**own, "scenario": scenario, "content_digest": bytes.fromhex(self.content_digest)}


class ReportLine(_Line):
    """Feedback; see :class:`reef.types.Report`."""

    kind: Literal["report"]
    id: Id | None = None
    references: list[Id] = Field(default_factory=list, max_length=MAX_REFERENCES)
    session: Name | None = None
    score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    feedback: str | dict[str, Any] | list[Any] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: Seconds | None = None

    def draft(self, scenario: str, *, redact: bool) -> ReportDraft:
        """The report it stands for.

        Raises:
            InvalidRequest: it quotes nothing.
        """
        references = tuple(self.references)
        name = self.id
        if name is None:
            content = self.model_dump(mode="python", include=self.model_fields_set - {"kind", "scenario"})
            at = int((self.created_at or 0) * 1000)
            name = f"rep_{at:012x}{digest(jsontext.dumps_sorted([scenario, content])).hex()[:32]}"
        return ReportDraft(
            scenario=scenario,
            references=references if self.session is None else (),
            quoted=references if self.session is not None else (),
            session=self.session,
            score=self.score,
            feedback=self.feedback,
            metadata=self.metadata,
            id=name,
            created_at=self.created_at,
            redact=redact,
        )


class SessionLine(_Line):
    """An agent run that was registered."""

    kind: Literal["session"]
    id: Name
    adapter: Annotated[Text, StringConstraints(max_length=128)]
    release: Step | None = None
    started_at: Seconds | None = None


AnyLine = RecordLine | TombstoneLine | ReportLine | SessionLine
_KINDS: Mapping[str, type[AnyLine]] = {"record": RecordLine, "tombstone": TombstoneLine, "report": ReportLine, "session": SessionLine}


class Line(NamedTuple):
    """A line that was read."""

    number: int
    scenario: str
    value: AnyLine


def read(text: bytes, *, first: int, scenario: str, in_lines: bool, most: int) -> list[Line]:
    """Read lines.

    Args:
        text: one JSON object in each line, or one array of them; empty lines are passed over.
        first: the number of the first line, for errors.
        scenario: of lines that name none.
        in_lines: it is no array, however it begins.
        most: how many there may be.

    Raises:
        InvalidLine: one of them cannot be read; says which, and which field.
    """
    found: list[Line] = []
    for number, value in _members(text, first=first, in_lines=in_lines):
        if len(found) == most:
            raise InvalidLine(number, f"a batch has at most {most}", hint="Send them in several batches.")
        if not isinstance(value, dict):
            raise InvalidLine(
                number, f"a JSON {_NAMES[type(value)]}, not an object", hint='A record is {"request": {…}, "response": {…}, …}.'
            )
        kind = value.get("kind", "record")
        shape = _KINDS.get(kind) if isinstance(kind, str) else None
        if shape is None:
            raise InvalidLine(
                number, "kind: must be record, report or session, or a tombstone of an export", hint="A line without `kind` is a record."
            )
        try:
            line = shape.model_validate(value)
        except ValidationError as error:
            raise InvalidLine(number, _problems(error), hint="docs/reference/http.md lists the fields of a line.") from None
        found.append(Line(number, line.scenario or scenario, line))
    return found


def of_record(record: Record) -> bytes:
    """A record as a line."""
    return _line("record", told(record))


def told(record: Record) -> dict[str, JSON]:
    """A record as JSON. Of its tokens, which weights made which is said where a swap fell into the answer, and not else."""
    found = record._asdict()
    if record.tokens is not None:
        found["tokens"] = {name: values for name, values in asdict(record.tokens).items() if values or name not in _OF_A_SWAP}
    return found


def of_tombstone(row: Mapping[str, Any]) -> bytes:
    """What is left of a record as a line."""
    kept = {column.name: row[column.name] for column in tombstones.KEPT}
    return _line("tombstone", {**kept, "streamed": bool(row["streamed"]), "content_digest": bytes(row["content_digest"]).hex()})


def of_report(report: Report) -> bytes:
    """A report as a line."""
    return _line("report", {name: getattr(report, name) for name in _REPORT_FIELDS})


def of_session(session: Mapping[str, JSON]) -> bytes:
    """A registered session as a line."""
    return _line("session", session)


_REPORT_FIELDS = tuple(field.name for field in fields(Report))
_OF_A_SWAP = ("served", "starts")
_NAMES: Mapping[type, str] = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _line(kind: str, content: Mapping[str, JSON]) -> bytes:
    return jsontext.dumps({"kind": kind, **content}) + b"\n"


def _members(text: bytes, *, first: int, in_lines: bool) -> Iterator[tuple[int, JSON]]:
    if not in_lines and text.lstrip()[:1] == b"[":
        try:
            yield from enumerate(jsontext.loads(text), start=first)
        except ValueError as error:
            raise InvalidRequest(f"the body is not JSON: {error}", hint="Send JSON objects, one a line, or one array of them.") from None
        return
    for number, part in enumerate(text.split(b"\n"), start=first):
        if part and not part.isspace():
            try:
                value = jsontext.loads(part)
            except ValueError as error:
                raise InvalidLine(number, f"not JSON: {error}", hint="Each line is one JSON object, in UTF-8.") from None
            yield number, value


def _problems(error: ValidationError) -> str:
    told = []
    for item in error.errors(include_url=False, include_input=False):
        what = {"extra_forbidden": "unknown field", "missing": "is missing"}.get(item["type"], item["msg"])
        told.append(f"{'.'.join(str(part) for part in item['loc'])}: {what}")
    return "; ".join(told[:5])
