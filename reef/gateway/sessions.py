"""Agent runs over HTTP: a list of them, and what each says, for people and for pages that show it to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from reef.experience import jsontext, telling
from reef.experience.sessions import Exchange, Thread, ThreadKind, threads
from reef.experience.telling import Kind, Part
from reef.gateway.auth import require
from reef.types import JSON, End, Origin

router = APIRouter(tags=["experience"])

OVERLAP = 32
"""Records before a later part that are looked at again, so that its threads go on and do not begin anew."""
MAX_CHARS = 1_000_000
MAX_REPORTS = 100


class SessionSummary(BaseModel):
    """One agent run."""

    id: str
    adapter: str | None = Field(description="The coding agent, where the run was registered.")
    release: int | None = Field(description="The step of the release it ran.")
    model: str
    records: int
    whole: bool = Field(description="False where it has more records than are counted here.")
    first_at: float
    last_at: float
    prompt_tokens: int
    completion_tokens: int
    ends: dict[End, int]
    reports: int
    score: float | None = Field(description="The newest score a report gave.")


class SessionList(BaseModel):
    """The newest agent runs of a scenario."""

    scenario: str
    sessions: list[SessionSummary]
    before: int | None = Field(description="`before` of the next page; null where nothing is left.")


class Said(BaseModel):
    """One thing that a turn says."""

    kind: Kind
    name: str = Field(description="Of a call: the tool's.")
    text: str
    chars: int = Field(description="What the whole text has; where `text` has less, its middle is cut out.")


class ExchangeInThread(BaseModel):
    """One record in its thread."""

    record: str = Field(description="The receipt.")
    model: str
    release: int | None
    origin: Origin
    end: End
    error: str
    started_at: float
    duration_ms: float
    usage: dict[str, int]
    retry_of: str | None = Field(description="The first try, where the same prompt was sent before.")
    rewritten: bool = Field(description="It does not go on where the exchange before it stopped.")
    asked: list[Said] = Field(description="What is new in its prompt; the system's part only where it changed.")
    answered: list[Said]


class SessionThread(BaseModel):
    """Exchanges that go on from each other."""

    kind: ThreadKind
    exchanges: list[ExchangeInThread]


class ReportOnSession(BaseModel):
    """A report on the run, or on records of it."""

    id: str
    score: float | None
    feedback: Any
    references: int
    created_at: float


class Conversation(BaseModel):
    """What an agent run says."""

    scenario: str
    session: SessionSummary
    threads: list[SessionThread]
    reports: list[ReportOnSession]
    after: str | None = Field(description="`after` of the next part; null where nothing is left.")


@router.get("/reef/scenarios/{scenario}/sessions", dependencies=[Depends(require("read"))], response_model=SessionList)
def list_sessions(
    request: Request,
    scenario: str,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=0, le=2**53, description="Where the page before this one says to go on.")] = None,
) -> Response:
    """The newest agent runs, the one with the newest record first. A page may be short, or empty, though an older one has more."""
    state = request.app.state.reef
    state.scenarios.check(scenario)
    page = state.store.sessions(scenario, limit=limit, before=before)
    return _json({"scenario": scenario, "sessions": [asdict(item) for item in page.sessions], "before": page.before})


@router.get("/reef/scenarios/{scenario}/sessions/{session}", dependencies=[Depends(require("read"))], response_model=Conversation)
def show_session(
    request: Request,
    scenario: str,
    session: str,
    after: Annotated[str, Query(description="The receipt after which to go on.")] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="Records, at most.")] = 200,
    chars: Annotated[int, Query(ge=0, le=MAX_CHARS, description="Of each text, at most about so many characters.")] = 4000,
) -> Response:
    """What an agent run says: its threads, each turn once, with the receipts. A long one comes in parts."""
    state = request.app.state.reef
    state.scenarios.check(scenario)
    summary = state.store.session(scenario, session)
    before, part = state.store.session_part(scenario, session, after=after, limit=limit, overlap=OVERLAP if after else 0)
    found = [_thread(thread, skip=len(before), chars=chars) for thread in threads([*before, *part])]
    reports = state.store.session_reports(scenario, session, limit=MAX_REPORTS)
    body = {
        "scenario": scenario,
        "session": asdict(summary),
        "threads": [thread for thread in found if thread["exchanges"]],
        "reports": [
            {
                "id": report.id,
                "score": report.score,
                "feedback": report.feedback,
                "references": len(report.references),
                "created_at": report.created_at,
            }
            for report in reports
        ],
        "after": part[-1].id if len(part) == limit else None,
    }
    return _json(body)


def _thread(thread: Thread, *, skip: int, chars: int) -> dict[str, JSON]:
    shown = []
    system: list[Part] = []
    for exchange in thread.exchanges:
        now = list(_system(exchange))
        if exchange.position >= skip:
            shown.append(_exchange(exchange, system=[] if now == system else now, chars=chars))
        system = now
    return {"kind": thread.kind, "exchanges": shown}


def _exchange(exchange: Exchange, *, system: Iterable[Part], chars: int) -> dict[str, JSON]:
    record = exchange.record
    return {
        "record": record.id,
        "model": record.model,
        "release": record.release,
        "origin": record.origin,
        "end": record.end,
        "error": record.error,
        "started_at": record.started_at,
        "duration_ms": record.duration_ms,
        "usage": dict(record.usage),
        "retry_of": exchange.retry_of,
        "rewritten": exchange.rewritten,
        "asked": [_said(part, chars) for part in (*system, *_parts(exchange.new))],
        "answered": [_said(part, chars) for part in _parts(exchange.answer)],
    }


def _system(exchange: Exchange) -> Iterator[Part]:
    yield from telling.system_parts(exchange.record)
    yield from _parts(exchange.system)


def _parts(turns: Iterable[JSON]) -> Iterator[Part]:
    for turn in turns:
        yield from telling.parts(turn)


def _said(part: Part, chars: int) -> dict[str, JSON]:
    return {"kind": part.kind, "name": part.name, "text": telling.cut(part.text, chars), "chars": len(part.text)}


def _json(value: JSON) -> Response:
    """As with records: FastAPI's encoder cannot write all of what clients send."""
    return Response(jsontext.dumps(value), media_type="application/json")
