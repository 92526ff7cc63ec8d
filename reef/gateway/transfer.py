"""Experience in and out over HTTP, as lines of JSON.

To take records in is for an admin: a line says itself who caused an exchange, when, and how it ended, which else only the gateway decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from reef.errors import Forbidden, InvalidRequest, ReefError, TooLarge
from reef.experience import export, lines
from reef.experience.lines import Line
from reef.experience.transfer import Importer
from reef.gateway import wire
from reef.gateway.auth import Caller, require
from reef.gateway.scenario_index import ScenarioIndex

router = APIRouter(tags=["experience"])

MAX_BATCH_BYTES = 2 * wire.MAX_BODY_BYTES
"""Room for any one exchange that this gateway would itself serve."""
MAX_BATCH_LINES = 1000
LINES = "application/x-ndjson"
_SHAPES: dict[str, Any] = {name: {"schema": {}} for name in (LINES, "application/json")}
_SCENARIO = "The scenario of lines that name none; the default one if it is left out."


class Counts(BaseModel):
    """How many of each kind."""

    sessions: int
    records: int
    reports: int


class BatchAnswer(BaseModel):
    """What became of a batch."""

    stored: Counts
    there: Counts = Field(description="What was there already, with the same content.")
    ids: list[str] = Field(description="Of the records, in the order of the lines.")
    gone: int = Field(description="How many of the stored records are tombstones: retention had dropped their content elsewhere.")


@router.post(
    "/reef/records/batch",
    openapi_extra={"requestBody": {"required": True, "content": _SHAPES}},
    responses={422: {"description": "A line that cannot be taken. Nothing of the batch is stored."}},
)
async def take_batch(
    request: Request,
    caller: Annotated[Caller, Depends(require("admin"))],
    scenario: Annotated[str, Header(alias="x-reef-scenario", description=_SCENARIO)] = "",
    first: Annotated[int, Query(ge=1, le=2**53, description="The number of the first line, for what is said about one.")] = 1,
) -> BatchAnswer:
    """Store records, reports and sessions: a JSON object a line, or one array of them. Nothing is stored if one of them cannot be."""
    state = request.app.state.reef
    in_lines = request.headers.get("content-type", "").startswith(LINES)
    body = await _body(request)
    default = scenario or state.scenarios.default
    read = await asyncio.to_thread(lines.read, body, first=first, scenario=default, in_lines=in_lines, most=MAX_BATCH_LINES)
    del body
    _check_scenarios(read, state.scenarios, only=caller.scenario)
    tally = await Importer(state.engine, state.writer, redact=state.config.storage.redact).take(read)
    for name in {line.scenario for line in read}:
        state.scenarios.touch(name)
    return BatchAnswer(stored=Counts(**tally.stored), there=Counts(**tally.there), ids=tally.ids, gone=tally.gone)


@router.get("/reef/export", response_class=StreamingResponse, responses={200: {"content": {LINES: {}}}})
def give_all(
    request: Request,
    caller: Annotated[Caller, Depends(require("read"))],
    scenario: Annotated[str | None, Query(description="Only this one.")] = None,
    session: Annotated[str | None, Query(description="Only this agent run of it.")] = None,
) -> StreamingResponse:
    """Every session, record and report, a JSON object a line, as `POST /reef/records/batch` takes them. Of a record whose content retention
    dropped a tombstone."""
    state = request.app.state.reef
    scenario = scenario or caller.scenario or None
    if session is not None:
        scenario = scenario or state.scenarios.default
    if scenario is not None:
        state.scenarios.check(scenario)
    found = export.export(state.engine, scenario=scenario, session=session)
    return StreamingResponse(found, media_type=LINES)


def _check_scenarios(read: Sequence[Line], scenarios: ScenarioIndex, *, only: str | None) -> None:
    """Refuse scenarios that may not exist, or that the caller's token may not touch."""
    checked: set[str] = set()
    for line in read:
        if line.scenario in checked:
            continue
        if only is not None and line.scenario != only:
            raise Forbidden(f"line {line.number}: this token is bound to the scenario {only}", hint="Use a token without a scenario.")
        try:
            scenarios.check(line.scenario)
        except ReefError as error:
            raise type(error)(f"line {line.number}: {error.message}", hint=error.hint) from None
        checked.add(line.scenario)


async def _body(request: Request) -> bytes:
    declared: Any = request.headers.get("content-length", "")
    parts: list[bytes] = []
    size = int(declared) if declared.isdigit() and len(declared) < 20 else 0
    if size <= MAX_BATCH_BYTES:
        size = 0
        try:
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > MAX_BATCH_BYTES:
                    break
        except ClientDisconnect:
            raise InvalidRequest("the client left before the batch was whole", hint="Send it again.") from None
    if size > MAX_BATCH_BYTES:
        raise TooLarge(f"the batch is larger than {MAX_BATCH_BYTES >> 20} MiB", hint="Send it in several.")
    return b"".join(parts)
