"""Records over HTTP, as the same JSON that was sent and answered."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from reef.experience import jsontext, lines
from reef.gateway.auth import require
from reef.types import JSON, Origin

router = APIRouter(tags=["experience"])

_GONE: dict[int | str, dict[str, Any]] = {410: {"description": "Retention dropped its content. `kept` has what is left."}}


def _json(value: JSON) -> Response:
    """FastAPI's encoder would walk every message of every request, and cannot write all of what clients send."""
    return Response(jsontext.dumps(value), media_type="application/json")


@router.get("/reef/records/{record}", dependencies=[Depends(require("read"))], responses=_GONE)
def show_record(request: Request, record: str) -> Response:
    """One exchange by its receipt. Once retention dropped its content: 410, with what is kept."""
    return _json(lines.told(request.app.state.reef.store.record(record)))


@router.get("/reef/scenarios/{scenario}/records", dependencies=[Depends(require("read"))])
def list_records(
    request: Request,
    scenario: str,
    session: Annotated[str | None, Query(description="Only those of this agent run.")] = None,
    origin: Annotated[Origin | None, Query(description="Only those caused by a user, a trial or a proposer.")] = None,
    candidate: Annotated[str | None, Query(description="Only those made by this candidate, on canary.")] = None,
    after: Annotated[str, Query(description="The receipt after which to go on.")] = "",
    newest: Annotated[bool, Query(description="The last ones instead of the first.")] = False,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Exchanges of a scenario in the order they were stored."""
    state = request.app.state.reef
    state.scenarios.check(scenario)
    found = state.store.records(scenario, session=session, origin=origin, candidate=candidate, after=after or 0, newest=newest, limit=limit)
    return _json({"scenario": scenario, "records": [lines.told(record) for record in found]})
