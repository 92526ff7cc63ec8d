"""The gateway's ASGI app: inference paths go straight to their handler, everything else to FastAPI."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

import reef
from reef.errors import InvalidRequest, MethodNotAllowed, ReefError, Unauthorized
from reef.gateway import (
    auth,
    bodies,
    counting,
    dialects,
    faults,
    harness,
    inference,
    openapi,
    openapi_access,
    records,
    replays,
    reports,
    scenarios,
    sealed,
    service,
    sessions,
    tokens,
    transfer,
    wire,
)
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
    routers = [module.router for module in (service, reports, records, sessions, scenarios, sealed, replays, harness, tokens, transfer)]
    for router in routers:
        app.include_router(router)
    faults.install(app)
    described = app.openapi
    document: dict[str, Any] = {}

    def describe() -> dict[str, Any]:
        if not document:
            document.update(openapi.extend(described(), scopes=openapi_access.scopes_of(routers), open_to_all=state.auth.open))
        return document

    app.openapi = describe  # type: ignore[method-assign]
    return Dispatcher(state, inference.Inference(state), counting.Counting(state), bodies.Bounded(app, state.metrics))


class Dispatcher:
    """Tells inference from the rest by the path alone; a base URL ``/s/<scenario>/<session>`` is taken apart here.

    Who calls is decided here as well, before a route is looked for or a body read, and counted against the limits of its token.
    """

    def __init__(self, state: GatewayState, inference: inference.Inference, counting: counting.Counting, rest: ASGIApp) -> None:
        self._auth = state.auth
        self._metrics = state.metrics
        self._inference = inference
        self._counting = counting
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        path: str = scope["path"]
        method: str = scope["method"]
        scenario = session = ""
        if path.startswith("/s/"):
            try:
                scenario, session, path = _take_apart(path, method)
            except ReefError as error:
                await self._refuse_base(scope, error, send)
                return
            scope = {**scope, "path": path, "raw_path": path.encode()}
        if auth.is_public(method, path):
            await self._rest(scope, receive, send)
            return
        dialect = _dialect_of(path)
        try:
            limits = self._auth.admit(scope, scenario=scenario).limits
            limits.take()
        except ReefError as error:
            self._metrics.refuse(error.type)
            await wire.send_error(send, error, dialect=dialect)
            return
        try:
            if dialect is None:
                _refuse_nul(scope)
                await self._rest(scope, receive, send)
            elif method != "POST":
                refusal = MethodNotAllowed(f"{method} {path}: only POST", hint="GET /openapi.json lists every route with its methods.")
                await wire.send_error(send, refusal, dialect=dialect, headers=[(b"allow", b"POST")])
            elif path == dialects.COUNT_TOKENS:
                await self._counting(scope, receive, send)
            else:
                await self._inference(scope, receive, send, dialect=dialect, scenario=scenario, session=session)
        except InvalidRequest as error:
            await wire.send_error(send, error)
        finally:
            limits.give()

    async def _refuse_base(self, scope: Scope, error: ReefError, send: Send) -> None:
        """Of a base URL that is none a stranger hears only that a token is needed."""
        try:
            self._auth.identify(scope["headers"])
        except Unauthorized as stranger:
            error = stranger
        self._metrics.refuse(error.type)
        await wire.send_error(send, error, dialect=_dialect_of("/" + "/".join(scope["path"].split("/")[4:])))


def _refuse_nul(scope: Scope) -> None:
    """No name holds the character that PostgreSQL has no place for; a parameter with it is refused before it reaches a query."""
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        raise InvalidRequest("the address holds a NUL character", hint="Names are of the characters A-Z a-z 0-9 . _ : -.")


def _dialect_of(path: str) -> dialects.Dialect | None:
    return dialects.BY_PATH.get(path) or (dialects.MESSAGES if path == dialects.COUNT_TOKENS else None)


def _take_apart(path: str, method: str) -> tuple[str, str, str]:
    """Scenario, session and the rest of ``/s/<scenario>/<session>/v1/…``; agents look with HEAD whether the base itself is there."""
    parts = path.split("/", 4)
    if method == "HEAD" and len(parts) in (4, 5) and not any(parts[4:]):
        return check_name(parts[2]), check_name(parts[3], what="session"), "/"
    if len(parts) < 5 or not parts[4].startswith("v1/"):
        raise InvalidRequest(f"{path[:200]} is not a path of this service", hint="The base URL is /s/<scenario>/<session>/v1.")
    return check_name(parts[2]), check_name(parts[3], what="session"), "/" + parts[4]
