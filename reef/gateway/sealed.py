"""Looks at the sealed tasks over HTTP: asked for here, answered by the learner."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from reef.gateway.auth import require
from reef.gateway.scenario_index import MAX_STEP
from reef.releases import sealed

router = APIRouter(tags=["scenarios"])


class NewLook(BaseModel):
    """Which releases to compare."""

    model_config = ConfigDict(extra="forbid")

    step: int | None = Field(None, ge=1, le=MAX_STEP, description="The release to measure; null: the head.")
    against: int = Field(1, ge=1, le=MAX_STEP, description="The release to measure it against.")
    pairs: int | None = Field(None, ge=1, le=100_000, description="How many pairs of trials; null: `evaluation.max_pairs`.")


@router.post("/reef/scenarios/{scenario}/sealed", dependencies=[Depends(require("admin"))], status_code=202)
def ask(request: Request, scenario: str, body: NewLook) -> dict[str, Any]:
    """Have two releases compared on the sealed tasks. Nothing is released by it; the look is kept, and counted."""
    controller = request.app.state.reef.controller
    return asdict(sealed.ask(controller, scenario, step=body.step, against=body.against, pairs=body.pairs))


@router.get("/reef/scenarios/{scenario}/sealed", dependencies=[Depends(require("read"))])
def list_looks(request: Request, scenario: str) -> dict[str, Any]:
    """Every look at the sealed tasks, oldest first, with its figures but without its trials."""
    controller = request.app.state.reef.controller
    controller.head(scenario)
    return {"scenario": scenario, "looks": [_told(look, answer, trials=False) for look, answer in sealed.looks(controller, scenario)]}


@router.get("/reef/scenarios/{scenario}/sealed/{look}", dependencies=[Depends(require("read"))])
def show(request: Request, scenario: str, look: str) -> dict[str, Any]:
    """One look with every trial; `answer` is null until the learner has run them."""
    controller = request.app.state.reef.controller
    controller.head(scenario)
    return _told(*sealed.look(controller, scenario, look), trials=True)


def _told(look: sealed.Look, answer: sealed.Answer | None, *, trials: bool) -> dict[str, Any]:
    told = None if answer is None else asdict(answer)
    if told is not None and told["verdict"] is not None and not trials:
        told["verdict"] = {key: value for key, value in told["verdict"].items() if key != "trials"}
    return {**asdict(look), "answer": told}
