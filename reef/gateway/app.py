"""The gateway's ASGI app: inference paths go straight to their handler, everything else to FastAPI."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

import reef
from reef.errors import InvalidRequest, MethodNotAllowed, ReefError
from reef.gateway import faults, harness, inference, openapi, records, reports, scenarios, service, wire
from reef.gateway.scenario_index import check_name
from reef.gateway.state import GatewayState


def create_app(state: GatewayState) -> ASGIApp:
    """The whole of it, ready for an ASGI server that runs lifespans."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with state.running():
            yield

    app = FastAPI(
        title="Reef",
        version=reef.__version__,
        description="An inference gateway that learns.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    app.state.reef = state
    for module in (service, reports, records, scenarios, harness):
        app.include_router(module.router)
    faults.install(app)
    described = app.openapi
    document: dict[str, Any] = {}

    def describe() -> dict[str, Any]:
        if not document:
            document.update(openapi.extend(described()))
        return document

    app.openapi = describe  # type: ignore[method-assign]
    return Dispatcher(inference.Inference(state), app)


class Dispatcher:
    """Tells inference from the rest by the path alone; a base URL ``/s/<scenario>/<session>`` is taken apart here."""

    def __init__(self, chat: inference.Inference, rest: FastAPI) -> None:
        self._chat = chat
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        path: str = scope["path"]
        scenario = session = ""
        if path.startswith("/s/"):
            try:
                scenario, session, path = _take_apart(path)
            except ReefError as error:
                await wire.send_error(send, error)
                return
            scope = {**scope, "path": path, "raw_path": path.encode()}
        if path != inference.PATH:
            await self._rest(scope, receive, send)
        elif scope["method"] != "POST":
            refusal = MethodNotAllowed(f"{scope['method']} {path}: only POST", hint="GET /openapi.json lists every route with its methods.")
            await wire.send_error(send, refusal, headers=[(b"allow", b"POST")])
        else:
            await self._chat(scope, receive, send, scenario=scenario, session=session)


def _take_apart(path: str) -> tuple[str, str, str]:
    """Scenario, session and the rest of ``/s/<scenario>/<session>/v1/…``."""
    parts = path.split("/", 4)
    if len(parts) < 5 or not parts[4].startswith("v1/"):
        raise InvalidRequest(f"{path[:200]} is not a path of this service", hint="The base URL is /s/<scenario>/<session>/v1.")
    return check_name(parts[2]), check_name(parts[3], what="session"), "/" + parts[4]
