"""Harnesses over HTTP: the files of a release, as they are or rendered for one agent, the install script, and what is released."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse

from reef import plugins
from reef.errors import NotFound
from reef.gateway.auth import require
from reef.gateway.scenario_index import MAX_STEP, PLAIN
from reef.harness.adapter import Adapter, Binding, load_adapter
from reef.harness.client import base_url, install_script
from reef.harness.tree import text
from reef.releases import pins, rollout
from reef.releases.controller import Controller
from reef.types import Candidate, Component, Release


class ShellScript(PlainTextResponse):
    """An answer to pipe into a shell."""

    media_type = "text/x-shellscript"


router = APIRouter(prefix="/reef/harness", tags=["harness"], dependencies=[Depends(require("harness"))])


async def the_scenario(
    request: Request,
    scenario: Annotated[str | None, Query(description="Overrides the header.")] = None,
    x_reef_scenario: Annotated[str | None, Header(description="The scenario; the default one if neither is given.")] = None,
) -> str:
    """The scenario a request is about, created at its first use where that is allowed."""
    state = request.app.state.reef
    name = scenario or x_reef_scenario or state.config.scenarios.names[0]
    if x_reef_scenario:  # what is nonsense is said so, overridden or not
        state.scenarios.check_name(x_reef_scenario)
    state.scenarios.check(name)
    await state.scenarios.ensure(name)
    return name


async def the_url(request: Request) -> str:
    """The gateway's address in the caller's eyes."""
    return base_url(scheme=request.url.scheme, host=request.headers.get("host", ""))


Scenario = Annotated[str, Depends(the_scenario)]
Client = Annotated[str, Query(pattern=pins.CLIENT, description="The installation that asks: it may be pinned to a release.")]
Installation = Annotated[
    str,
    Header(
        alias="x-reef-client",
        pattern=pins.CLIENT,
        description="The same, of a client that can run a candidate on canary and says so in `x-reef-release`: it may get one.",
    ),
]
Url = Annotated[str, Depends(the_url)]
AdapterName = Annotated[str, Query(max_length=100, description="The coding agent, as in `/reef/harness/adapters`.")]


@router.get("")
def pull(
    request: Request,
    scenario: Scenario,
    url: Url,
    version: Annotated[
        str | None, Query(max_length=100, description="A step or a content id; if absent, where the client is pinned to, or the head.")
    ] = None,
    adapter: Annotated[str | None, Query(max_length=100, description="Render the files for this coding agent.")] = None,
    client: Client = "",
    installation: Installation = "",
) -> JSONResponse:
    """A release's files as text, with their SHA-256 digests; with `adapter`, the agent's own files and how it is launched.

    A client that is on canary gets the `candidate`'s, with the `step` that it was made for."""
    state = request.app.state.reef
    candidate = rollout.offered(state.controller, scenario, client=installation) if version is None else None
    release = _find(state, scenario, version, client or installation)
    tree = state.artifacts.read(candidate.components[Component.HARNESS].commit if candidate else release.commit)
    extra: dict[str, Any] = {}
    if adapter is not None:
        chosen = load_adapter(adapter)
        tree = chosen.render(tree, binding=Binding(f"{url}/v1", state.config.default_model))
        extra = {"adapter": {"name": chosen.name, "version": chosen.install.version}, "launch": asdict(chosen.launch())}
    manifest = {
        "scenario": scenario,
        **_brief(release, candidate),
        "files": {path: text(tree, path) for path in sorted(tree)},
        "digests": {path: hashlib.sha256(tree[path].data).hexdigest() for path in sorted(tree)},
        "executable": [path for path in sorted(tree) if tree[path].executable],
        **extra,
    }
    return JSONResponse(manifest)


@router.get("/head")
def head(
    request: Request,
    scenario: Scenario,
    adapter: Annotated[str | None, Query(max_length=100, description="The coding agent that asks.")] = None,
    have: Annotated[str | None, Query(max_length=100, description="The content id the caller has.")] = None,
    client: Client = "",
    installation: Installation = "",
) -> dict[str, Any]:
    """The release to run, the head or where the client is pinned to, and whether it is news to a caller that has `have`. Small and quick:
    asked at every launch. A client that is on canary is told of the `candidate`, with the `step` that it was made for."""
    controller = request.app.state.reef.controller
    release = pins.release_for(controller, scenario, client=client or installation)
    if adapter is not None:
        load_adapter(adapter)
    brief = _brief(release, rollout.offered(controller, scenario, client=installation))
    return {**brief, "update": have != brief["content_id"]}


@router.get("/versions")
def versions(request: Request, scenario: Scenario) -> dict[str, Any]:
    """Every release, newest last, with the evidence it was made on. The shape the public `reef-client` reads."""
    controller = request.app.state.reef.controller
    rows = []
    for release in controller.releases(scenario):
        verdict = controller.verdict(release.candidate) if release.candidate else None
        evidence = {} if verdict is None else {key: getattr(verdict, key) for key in ("effect", "low", "high", "pairs", "wins", "losses")}
        rows.append({**_brief(release), "operation": release.operation, "created_at": release.created_at, "metrics": evidence})
    return {"scenario": scenario, "versions": rows}


@router.get("/releases")
def releases(request: Request, scenario: Scenario) -> dict[str, Any]:
    """The chain as it is kept, oldest first."""
    chain = request.app.state.reef.controller.releases(scenario)
    return {"scenario": scenario, "head": chain[-1].step, "releases": [asdict(release) for release in chain]}


@router.get("/diff", response_class=PlainTextResponse)
def diff(
    request: Request,
    scenario: Scenario,
    old: Annotated[int | None, Query(alias="from", ge=1, le=MAX_STEP, description="A step; the one before `to` if absent.")] = None,
    new: Annotated[int | None, Query(alias="to", ge=1, le=MAX_STEP, description="A step; the head if absent.")] = None,
    candidate: Annotated[str | None, Query(max_length=100, pattern=PLAIN, description="A candidate on canary: what it changes.")] = None,
) -> PlainTextResponse:
    """What changed between two releases, as `git diff` shows it."""
    controller = request.app.state.reef.controller
    if candidate is not None:
        return PlainTextResponse(_change(controller, scenario, candidate))
    new = new or controller.head(scenario).step
    return PlainTextResponse(controller.diff(scenario, old or max(1, new - 1), new))


@router.get("/adapters")
def adapters(url: Url) -> dict[str, Any]:
    """The coding agents this gateway has harnesses for, and plugins that did not load."""
    known = [_describe(load_adapter(name), url) for name in plugins.names("reef.adapters")]
    return {"adapters": known, "broken": plugins.broken("reef.adapters")}


@router.get("/install", response_class=ShellScript)
def install(scenario: Scenario, url: Url, adapter: AdapterName) -> ShellScript:
    """A bash script that installs the agent and its wrapper on a user's machine. It holds no token."""
    return ShellScript(install_script(load_adapter(adapter), url=url, scenario=scenario))


def _brief(release: Release, candidate: Candidate | None = None) -> dict[str, Any]:
    if candidate is not None:
        return {
            "step": candidate.base_step,
            "artifact_version": candidate.id,
            "content_id": candidate.components[Component.HARNESS].content_id,
            "summary": candidate.summary,
            "candidate": candidate.id,
        }
    return {
        "step": release.step,
        "artifact_version": str(release.step),
        "content_id": release.content_id,
        "summary": release.summary,
    }


def _change(controller: Controller, scenario: str, name: str) -> str:
    """What the candidate on canary changes of the harness. Others are not for clients to see."""
    found = rollout.canary(controller, scenario)
    if found is None or found.candidate.id != name or found.by_session:
        raise NotFound(f"no candidate {name} is on canary in {scenario}", hint="`reef candidates` lists them all.")
    base = controller.release(scenario, found.candidate.base_step)
    return controller.artifacts.diff(base.commit, found.candidate.components[Component.HARNESS].commit)


def _describe(adapter: Adapter, url: str) -> dict[str, Any]:
    return {
        "name": adapter.name,
        "version": adapter.install.version,
        "package": adapter.install.package,
        "program": f"reef-{adapter.name}",
        "install": f"curl -fsS -H \"Authorization: Bearer $REEF_TOKEN\" '{url}/reef/harness/install?adapter={adapter.name}' | bash",
    }


def _find(state: Any, scenario: str, version: str | None, client: str) -> Release:
    if version is None:
        return pins.release_for(state.controller, scenario, client=client)
    if version.isdecimal() and len(version) < 10:
        return state.controller.release(scenario, int(version))
    matches = [release for release in state.controller.releases(scenario) if release.content_id == version]
    if not matches:
        raise NotFound(f"{scenario} has no release {version!r}", hint="Give a step or a whole content id; `reef releases` lists them.")
    return matches[-1]
