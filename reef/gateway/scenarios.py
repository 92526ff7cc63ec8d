"""Scenarios and their chains over HTTP: releases, candidates with their evidence, rollback."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from reef.gateway.auth import require

router = APIRouter(tags=["scenarios"])


class Rollback(BaseModel):
    """What to bring back."""

    model_config = ConfigDict(extra="forbid")

    step: int = Field(ge=1, description="The release whose content becomes the head again, as a new release.")
    expected_head: int | None = Field(None, description="Refuse with 409 if the head is another one by now.")


class NewScenario(BaseModel):
    """A workload to create."""

    model_config = ConfigDict(extra="forbid")

    name: str


@router.get("/reef/scenarios", dependencies=[Depends(require("read"))])
def list_scenarios(request: Request) -> dict[str, Any]:
    """Every scenario with the step of its head."""
    heads = request.app.state.reef.controller.scenarios()
    return {"scenarios": [{"name": name, "head": step} for name, step in sorted(heads.items())]}


@router.post("/reef/scenarios", dependencies=[Depends(require("admin"))], status_code=201)
async def create_scenario(request: Request, body: NewScenario) -> dict[str, Any]:
    """Create a scenario with the starter harness as its release 1; the same answer if it exists."""
    state = request.app.state.reef
    state.scenarios.check_name(body.name)
    await state.scenarios.ensure(body.name)
    return {"name": body.name}


@router.get("/reef/scenarios/{scenario}/releases", dependencies=[Depends(require("read"))])
def list_releases(request: Request, scenario: str) -> dict[str, Any]:
    """The scenario's chain, oldest first."""
    controller = request.app.state.reef.controller
    head = controller.head(scenario).step
    return {"scenario": scenario, "head": head, "releases": [asdict(release) for release in controller.releases(scenario)]}


@router.post("/reef/scenarios/{scenario}/rollback", dependencies=[Depends(require("admin"))])
def roll_back(request: Request, scenario: str, body: Rollback) -> dict[str, Any]:
    """Bring an earlier release back. The chain only grows: the old content gets a new step."""
    controller = request.app.state.reef.controller
    return asdict(controller.rollback(scenario, body.step, expected_head=body.expected_head))


@router.get("/reef/scenarios/{scenario}/candidates", dependencies=[Depends(require("read"))])
def list_candidates(request: Request, scenario: str) -> dict[str, Any]:
    """Every candidate that was ever proposed, oldest first, with what became of it."""
    controller = request.app.state.reef.controller
    controller.head(scenario)
    return {"scenario": scenario, "candidates": [asdict(candidate) for candidate in controller.candidates(scenario)]}


@router.get("/reef/candidates/{candidate}", dependencies=[Depends(require("read"))])
def show_candidate(request: Request, candidate: str) -> dict[str, Any]:
    """One candidate with its change and the evidence for its verdict."""
    state = request.app.state.reef
    found = state.controller.candidate(candidate)
    verdict = state.controller.verdict(candidate)
    base = state.controller.release(found.scenario, found.base_step)
    return {
        **asdict(found),
        "diff": state.artifacts.diff(base.commit, found.commit),
        "verdict": asdict(verdict) if verdict else None,
    }
