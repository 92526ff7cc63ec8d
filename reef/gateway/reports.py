"""Feedback and sessions over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt

from reef.experience.reports import ReportDraft
from reef.gateway import report_schema
from reef.gateway.auth import require
from reef.gateway.scenario_index import MAX_STEP, NAME, PLAIN, check_name, described

router = APIRouter(tags=["experience"])
Scenario = Annotated[str, Header(alias="x-reef-scenario", description="The scenario; the default one if it is left out.")]


_EITHER: dict[str, Any] = {
    "oneOf": [
        {"required": ["references"], "properties": {"references": {"minItems": 1}, "session": {"type": "null"}}},
        {"required": ["session"], "properties": {"session": {"type": "string"}, "references": {"maxItems": 0}}},
    ]
}


class ReportBody(BaseModel):
    """How an answer, or a whole agent run, went."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_EITHER)

    score: StrictInt | StrictFloat | None = Field(None, allow_inf_nan=False, description="0 is failed, 1 is perfect.")
    feedback: str | dict[str, Any] | list[Any] | None = Field(None, description="What was good or bad about it.")
    references: list[Annotated[str, Field(pattern=PLAIN)]] = Field(
        default_factory=list, description="Receipts: the x-reef-agent-record-id of the answers it grades.", max_length=10_000
    )
    session: str | None = Field(None, pattern=PLAIN, description="Instead of references: every record of this session.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Whatever helps to read it later.")
    agent_record_id: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._:-]{1,128}$", description="The report's own id; sent twice, it is stored once."
    )


class ReportAnswer(BaseModel):
    """A stored report."""

    agent_record_id: str = Field(description="The report's id.")
    scenario: str
    references: list[str]
    session: str | None
    score: float | None
    created: bool = Field(description="False where it was there already.")
    created_at: float


class SessionBody(BaseModel):
    """An agent run that begins."""

    model_config = ConfigDict(extra="forbid")

    session: str = Field(json_schema_extra=described)
    adapter: str = Field(description="The coding agent: a name in `reef.adapters`.", pattern=f"^{NAME.pattern}$")
    release: int | None = Field(None, ge=1, le=MAX_STEP, description="The step of the release it runs.")


@router.post("/reef/report", dependencies=[Depends(require("report"))], status_code=201, responses={200: {"model": ReportAnswer}})
async def report(request: Request, response: Response, body: ReportBody, scenario: Scenario = "") -> ReportAnswer:
    """Store feedback on answers. The same id with the same content gives the same answer; with other content, 409.

    A recipe may want reports of a form; one that has another is refused with 422.
    """
    state = request.app.state.reef
    name = scenario or state.scenarios.default
    state.scenarios.check(name)
    said = body.model_dump(include={"score", "feedback", "metadata"} & body.model_fields_set, exclude_none=True)
    await report_schema.check(state.config.reef.recipe, said)
    draft = ReportDraft(
        scenario=name,
        references=tuple(body.references),
        session=body.session,
        score=body.score,
        feedback=body.feedback,
        metadata=body.metadata,
        id=body.agent_record_id or "",
        redact=state.config.storage.redact,
    )
    stored, created = await state.writer.report(draft)
    response.status_code = 201 if created else 200
    return ReportAnswer(
        agent_record_id=stored.id,
        scenario=stored.scenario,
        references=list(stored.references),
        session=stored.session,
        score=stored.score,
        created=created,
        created_at=stored.created_at,
    )


@router.get("/reef/reports/{report}", dependencies=[Depends(require("read"))])
def show_report(request: Request, report: str) -> dict[str, Any]:
    """One report."""
    return asdict(request.app.state.reef.store.report(report))


@router.get("/reef/scenarios/{scenario}/reports", dependencies=[Depends(require("read"))])
def list_reports(request: Request, scenario: str, limit: int = 100) -> dict[str, Any]:
    """The newest reports of a scenario, newest first."""
    state = request.app.state.reef
    state.scenarios.check(scenario)
    return {"scenario": scenario, "reports": [asdict(item) for item in state.store.reports(scenario, limit=max(1, min(limit, 1000)))]}


@router.post("/reef/sessions", dependencies=[Depends(require("report"))], status_code=201)
async def register_session(request: Request, body: SessionBody, scenario: Scenario = "") -> dict[str, Any]:
    """Register an agent run, so that its records are known to belong together even before the first."""
    state = request.app.state.reef
    name = scenario or state.scenarios.default
    state.scenarios.check(name)
    check_name(body.session, what="session")
    state.scenarios.touch(name)
    await state.writer.session(name, body.session, adapter=body.adapter, release=body.release)
    return {"scenario": name, "session": body.session}
