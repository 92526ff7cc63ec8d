"""The service about itself: is it there, how is it, what models does it have."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

import reef
from reef.gateway.auth import require

router = APIRouter(tags=["service"])


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
    """The upstream's models, in its own words."""
    answer = await request.app.state.reef.upstream.get("/models")
    try:
        body = await answer.read()
    finally:
        answer.close()
    return Response(body, status_code=answer.status, media_type=answer.content_type or None)


@router.get("/reef/status", dependencies=[Depends(require("read"))])
async def status(request: Request) -> dict[str, Any]:
    """What runs, what it is connected to, and how much there is."""
    state = request.app.state.reef
    config = state.config
    counts, reachable, others = await asyncio.gather(
        asyncio.to_thread(state.store.counts), state.upstream.reachable(), asyncio.to_thread(_others, config.state_dir / "run")
    )
    return {
        "version": reef.__version__,
        "time": time.time(),
        "recipe": config.reef.recipe,
        "upstream": {"url": state.upstream.url, "model": state.upstream.model, "reachable": reachable},
        "storage": {"dir": str(config.state_dir), "database": state.engine.url.render_as_string(hide_password=True)},
        "writer": {"alive": state.writer.alive, "waiting": state.writer.waiting, "last_error": state.writer.last_error},
        "scenarios": dict(sorted(state.scenarios.heads.items())),
        "counts": counts,
        **others,
    }


def _others(folder: Path) -> dict[str, Any]:
    """What supervisor and learner wrote down about themselves. Nothing where they do not run."""
    found: dict[str, Any] = {}
    if (supervisor := _read(folder / "processes.json")) is not None:
        found.update({name: supervisor[name] for name in ("url", "processes") if name in supervisor})
    if (learner := _read(folder / "learner.json")) is not None:
        found["learner"] = learner
    return found


def _read(file: Path) -> dict[str, Any] | None:
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return written if isinstance(written, dict) else None
