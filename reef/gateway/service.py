"""The service about itself: is it there, how is it, what models does it have."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

import reef
from reef.config import Config
from reef.experience import usage
from reef.gateway import report_schema
from reef.gateway.auth import require
from reef.gateway.metrics import Page
from reef.serving.engine import notes
from reef.serving.upstreams import Upstreams

router = APIRouter(tags=["service"])

_PAGE: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.head("/", include_in_schema=False)
def there() -> Response:
    """Some agents ask this before anything else."""
    return Response()


@router.get("/healthz")
def health(request: Request) -> Response:
    """200 while the gateway can serve; 503 while its writer takes nothing."""
    alive = request.app.state.reef.writer.alive
    return Response(
        json.dumps({"status": "ok" if alive else "the writer takes nothing"}),
        status_code=200 if alive else 503,
        media_type="application/json",
    )


@router.get("/v1/models", dependencies=[Depends(require("infer"))], tags=["inference"])
async def models(request: Request) -> Response:
    """What callers can ask for: aliases and the upstreams' models. A lone upstream's list comes in its own words."""
    answer = await request.app.state.reef.upstreams.models()
    try:
        body = await answer.read()
    finally:
        answer.close()
    return Response(body, status_code=answer.status, media_type=answer.content_type or None)


@router.get("/metrics", dependencies=[Depends(require("read"))], responses=_PAGE, response_class=Response)
async def metrics(request: Request) -> Response:
    """What this process counted, in the format of Prometheus."""
    state = request.app.state.reef
    page = await Page.take(state.metrics, writer=state.writer, size=state.size)
    body, content_type = await asyncio.to_thread(page.render, request.headers.get("accept", ""))
    return Response(body, media_type=content_type)


@router.get("/reef/status", dependencies=[Depends(require("read"))])
async def status(request: Request) -> dict[str, Any]:
    """What runs, what it is connected to, and how much there is."""
    state = request.app.state.reef
    config = state.config
    counts, held, reachable, others = await asyncio.gather(
        asyncio.to_thread(state.store.counts),
        asyncio.to_thread(usage.sums, state.engine),
        state.upstreams.reachable(),
        asyncio.to_thread(_others, config.state_dir / "run"),
    )
    return {
        "version": reef.__version__,
        "time": time.time(),
        "recipe": config.reef.recipe,
        "reports": {"unchecked_because": report_schema.problem(config.reef.recipe)},
        **_upstreams(state.upstreams, reachable),
        "storage": {"dir": str(config.state_dir), "database": state.engine.url.render_as_string(hide_password=True)},
        "writer": {"alive": state.writer.alive, "waiting": state.writer.waiting, "last_error": state.writer.last_error},
        "scenarios": dict(sorted(state.scenarios.heads.items())),
        "counts": counts,
        "held": {name: _held(config, name, sums) for name, sums in held.items()},
        **others,
    }


def _held(config: Config, scenario: str, sums: dict[str, int]) -> dict[str, Any]:
    """What a scenario holds, as retention last counted it, what it may hold, and what was dropped."""
    budget = config.storage.retention.scenarios.get(scenario, config.storage.retention)
    return {**sums, "max_bytes": budget.max_bytes, "max_age_days": budget.max_age_days}


def _upstreams(upstreams: Upstreams, reachable: dict[str, bool]) -> dict[str, Any]:
    """The upstreams, the default one first and by itself as well."""
    listed = [
        {"name": name, "kind": one.config.kind, "url": one.url, "model": one.model, "reachable": reachable[name]}
        for name, one in upstreams.shown.items()
    ]
    default = listed[0] if listed else {"url": "", "model": "", "reachable": False}
    return {
        "upstream": {key: default[key] for key in ("url", "model", "reachable")},
        "upstreams": listed,
        "aliases": list(upstreams.aliases),
    }


def _others(folder: Path) -> dict[str, Any]:
    """What supervisor and learner wrote down about themselves. Nothing where they do not run."""
    found: dict[str, Any] = {}
    if (supervisor := _read(folder / "processes.json")) is not None:
        found.update({name: supervisor[name] for name in ("url", "processes") if name in supervisor})
    for name in ("learner", "retention", "weights"):
        if (told := _read(folder / f"{name}.json")) is not None:
            found[name] = told
    if (told := _read(folder / "canary.json")) is not None and (told.get("under_way") or told.get("error")):
        found["canary"] = told
    if (engine := notes.described(folder)) is not None:
        found["engine"] = engine
    if (engine := notes.described(folder.parent / notes.JUDGE / folder.name)) is not None and engine["state"] != "stopped":
        found["judge_engine"] = engine
    return found


def _read(file: Path) -> dict[str, Any] | None:
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return written if isinstance(written, dict) else None
