"""Scenarios and their chains over HTTP: releases, candidates with their evidence, and what a person decides about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from reef.artifacts.repository import ArtifactRepository
from reef.errors import NotFound
from reef.gateway.auth import require
from reef.gateway.scenario_index import MAX_STEP, PLAIN, described
from reef.harness.tree import validate
from reef.releases import pins, rollout
from reef.releases.controller import Controller
from reef.releases.imports import bring_in
from reef.releases.live_reports import standing
from reef.types import Candidate, CandidateState, Component, Content, File

router = APIRouter(tags=["scenarios"])


class Rollback(BaseModel):
    """What to bring back."""

    model_config = ConfigDict(extra="forbid")

    step: int = Field(ge=1, le=MAX_STEP, description="The release whose content becomes the head again, as a new release.")
    expected_head: int | None = Field(None, ge=0, le=MAX_STEP, description="Refuse with 409 if the head is another one by now.")


class Review(BaseModel):
    """What a person decided about a candidate."""

    model_config = ConfigDict(extra="forbid")

    candidate: str = Field(max_length=100, pattern=PLAIN)
    reason: str = Field("", max_length=1000, pattern=PLAIN, description="Kept with the candidate.")


class Pin(BaseModel):
    """Who stays on which release."""

    model_config = ConfigDict(extra="forbid")

    step: int | None = Field(None, ge=1, le=MAX_STEP, description="The release to stay on; null follows the head again.")
    client: str = Field("", pattern=pins.CLIENT, description="An installation, as `reef-pi status` names it; empty for all clients.")


class Import(BaseModel):
    """A harness made elsewhere."""

    model_config = ConfigDict(extra="forbid")

    files: dict[str, str] = Field(description="Text by path. All of them: what is not named is not in the new release.")
    executable: list[str] = Field([], description="Paths of those that are programs.")
    summary: str = Field("Imported", max_length=1000, pattern=PLAIN)
    expected_head: int | None = Field(None, ge=0, le=MAX_STEP, description="Refuse with 409 if the head is another one by now.")


class NewScenario(BaseModel):
    """A workload to create."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(json_schema_extra=described)


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


@router.post("/reef/scenarios/{scenario}/promote", dependencies=[Depends(require("admin"))])
def promote(request: Request, scenario: str, body: Review) -> dict[str, Any]:
    """Release a candidate after review: one that is held or on canary, or that the gate could not decide on."""
    controller = request.app.state.reef.controller
    _candidate_of(controller, scenario, body.candidate)
    return asdict(controller.promote(body.candidate, reason=body.reason))


@router.post("/reef/scenarios/{scenario}/reject", dependencies=[Depends(require("admin"))])
def reject(request: Request, scenario: str, body: Review) -> dict[str, Any]:
    """Refuse a candidate that is held or on canary, after review."""
    controller = request.app.state.reef.controller
    _candidate_of(controller, scenario, body.candidate)
    return asdict(controller.reject(body.candidate, reason=body.reason))


@router.post("/reef/scenarios/{scenario}/import", dependencies=[Depends(require("admin"))])
def import_harness(request: Request, scenario: str, body: Import) -> dict[str, Any]:
    """Release a harness that was made elsewhere, on its sender's word. Checkpoints come in by `reef release import`."""
    controller = request.app.state.reef.controller
    programs = set(body.executable)
    tree = {path: File(text.encode("utf-8", "surrogatepass"), path in programs) for path, text in body.files.items()}
    validate(tree)
    release = bring_in(controller, scenario, Component.HARNESS, tree, summary=body.summary, expected_head=body.expected_head)
    return asdict(release)


@router.post("/reef/scenarios/{scenario}/pin", dependencies=[Depends(require("admin"))])
def pin(request: Request, scenario: str, body: Pin) -> dict[str, Any]:
    """Have a client, or all of them, stay on a release, or follow the head again."""
    controller = request.app.state.reef.controller
    controller.head(scenario)
    if body.step is None:
        pins.unpin(controller, scenario, client=body.client)
    else:
        pins.pin(controller, scenario, body.step, client=body.client)
    return {"scenario": scenario, "client": body.client, "step": body.step}


@router.get("/reef/scenarios/{scenario}/pins", dependencies=[Depends(require("read"))])
def list_pins(request: Request, scenario: str) -> dict[str, Any]:
    """Who stays on which release; the empty name stands for all clients."""
    controller = request.app.state.reef.controller
    controller.head(scenario)
    return {"scenario": scenario, "pins": [{"client": client, "step": step} for client, step in pins.pins(controller, scenario).items()]}


@router.get("/reef/scenarios/{scenario}/candidates", dependencies=[Depends(require("read"))])
def list_candidates(request: Request, scenario: str) -> dict[str, Any]:
    """Every candidate that was ever proposed, oldest first, with what became of it."""
    controller = request.app.state.reef.controller
    controller.head(scenario)
    return {"scenario": scenario, "candidates": [asdict(candidate) for candidate in controller.candidates(scenario)]}


@router.get("/reef/candidates/{candidate}", dependencies=[Depends(require("read"))])
def show_candidate(request: Request, candidate: str) -> dict[str, Any]:
    """One candidate with its change, the evidence for its verdict, and how its canary or shadow stands."""
    state = request.app.state.reef
    found = state.controller.candidate(candidate)
    verdict = state.controller.verdict(candidate)
    base = state.controller.release(found.scenario, found.base_step)
    return {
        **asdict(found),
        "diff": "" if found.dropped_at else _changes(state.artifacts, found, base.components),
        "verdict": asdict(verdict) if verdict else None,
        "rollout": _rollout(state.controller, candidate),
    }


def _rollout(controller: Controller, candidate: str) -> dict[str, Any] | None:
    """How a candidate was or is tried on traffic. A canary under way is judged anew, by the reports there are now."""
    found = rollout.of(controller, candidate)
    if found is None:
        return None
    told = {"mode": found.mode, "plan": asdict(found.plan), "started_at": found.started_at, "ended_at": found.ended_at}
    if found.candidate.state is CandidateState.CANARY:
        return {**told, "finding": asdict(standing(controller.engine, found).verdict)}
    return {**told, "finding": found.finding}


def _changes(artifacts: ArtifactRepository, candidate: Candidate, before: Mapping[str, Content]) -> str:
    """What a candidate changes, component after component; one that is new is told by its files' names."""
    parts = []
    for name, content in candidate.components.items():
        if name in before:
            parts.append(artifacts.diff(before[name].commit, content.commit))
        else:
            parts += [f"+ {name}: {path}\n" for path in sorted(artifacts.read(content.commit))]
    return "".join(parts)


def _candidate_of(controller: Controller, scenario: str, candidate: str) -> None:
    if controller.candidate(candidate).scenario != scenario:
        raise NotFound(f"{scenario} has no candidate {candidate}", hint="`reef candidates` lists them.")
