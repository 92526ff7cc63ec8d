"""The hot path: one inference exchange, from the caller's bytes to the provider's, with its record on disk before the last of them.

Plain ASGI. A request is parsed once; bytes are passed on as they are. Nothing here asks the database.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog
from starlette.types import Receive, Scope, Send

from reef.errors import ReefError
from reef.experience.dialects import named as stored
from reef.gateway import wire
from reef.gateway.auth import CALLER, Caller
from reef.gateway.correlation import agents_own_session, check_model, release_of
from reef.gateway.dialects import Dialect
from reef.gateway.exchange import Exchange
from reef.gateway.reading import Reader
from reef.gateway.scenario_index import check_name
from reef.types import Origin

if TYPE_CHECKING:
    from reef.gateway.state import GatewayState

log = structlog.get_logger()


class Inference:
    """The ASGI app of the inference routes."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._reader = Reader()

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, dialect: Dialect, scenario: str = "", session: str = ""
    ) -> None:
        """Serve one request; ``scenario`` and ``session`` come from a base URL that names them, and go before headers."""
        try:
            exchange = await self._accept(scope, receive, dialect=dialect, scenario=scenario, session=session)
        except ReefError as error:
            self._state.metrics.refuse(error.type)
            await wire.send_error(send, error, dialect=dialect)
        except wire.ClientGone:
            return
        else:
            await exchange.run(receive, send)

    async def _accept(self, scope: Scope, receive: Receive, *, dialect: Dialect, scenario: str, session: str) -> Exchange:
        state = self._state
        headers = wire.header_map(scope)
        caller: Caller = scope[CALLER]
        caller.require("infer")
        scenario = scenario or headers.get(b"x-reef-scenario", b"").decode("latin-1") or state.scenarios.default
        state.scenarios.check(scenario)
        session = session or headers.get(b"x-reef-session", b"").decode("latin-1")
        if session:
            check_name(session, what="session")
        else:
            session = agents_own_session(headers)
        release, candidate = release_of(headers.get(b"x-reef-release"))
        raw = await wire.read_body(headers, receive)
        clock = time.perf_counter()
        body, whole = self._reader.read(raw, scenario=scenario, session=session, key=stored(dialect.name).key)
        named = body.get("model")
        if caller.origin is Origin.USER:
            check_model(named)
        if not whole and (state.routing.plans or state.captures_tokens or not state.upstreams.route(dialect.name, named).passes_on(named)):
            body = wire.json_object(raw)  # it will be written anew, or looked into
        state.scenarios.touch(scenario)
        asked, text = body, raw
        if state.routing.plans:
            candidate, asked, raw = state.routing.way(scenario, session, body, raw=raw, origin=caller.origin, candidate=candidate)
        return Exchange(
            state,
            dialect=dialect,
            scenario=scenario,
            session=session or None,
            release=release,
            candidate=candidate,
            origin=caller.origin,
            body=body,
            asked=asked,
            text=text,
            raw=raw,
            headers=headers,
            query=scope["query_string"] if dialect.passes_query else b"",
            clock=clock,
        )
