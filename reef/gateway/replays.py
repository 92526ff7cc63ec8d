"""Replays of sessions over HTTP: asked for here, answered by the learner."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from reef.gateway.auth import require
from reef.gateway.scenario_index import PLAIN
from reef.releases import replays

router = APIRouter(tags=["scenarios"])


class NewReplay(BaseModel):
    """What is to be answered again, and by whom."""

    model_config = ConfigDict(extra="forbid")

    session: str = Field(max_length=128, pattern=PLAIN, description="A recorded session.")
    candidate: str | None = Field(None, max_length=100, pattern=PLAIN, description="A candidate in whatever state; null: the head.")


@router.post("/reef/scenarios/{scenario}/replays", dependencies=[Depends(require("admin"))], status_code=202)
def ask(request: Request, scenario: str, body: NewReplay) -> dict[str, Any]:
    """Have a recorded session answered again, by a candidate or the head. Nothing is released by it."""
    return asdict(replays.ask(request.app.state.reef.controller, scenario, body.session, candidate=body.candidate))


@router.get("/reef/scenarios/{scenario}/replays/{replay}", dependencies=[Depends(require("read"))])
def show(request: Request, scenario: str, replay: str) -> dict[str, Any]:
    """What came of a replay; `finding` is null until the learner has run it."""
    return asdict(replays.get(request.app.state.reef.controller, scenario, replay))
