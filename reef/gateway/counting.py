"""How many tokens a prompt has: asked of the upstream, and no inference, so nothing is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from reef.errors import ReefError
from reef.gateway import wire
from reef.gateway.auth import CALLER, Caller
from reef.gateway.dialects import COUNT_TOKENS, MESSAGES

if TYPE_CHECKING:
    from reef.gateway.state import GatewayState


class Counting:
    """The ASGI app of ``/v1/messages/count_tokens``."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one question on."""
        try:
            await self._pass_on(scope, receive, send)
        except ReefError as error:
            await wire.send_error(send, error, dialect=MESSAGES)
        except wire.ClientGone:
            return

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = wire.header_map(scope)
        caller: Caller = scope[CALLER]
        caller.require("infer")
        raw = await wire.read_body(headers, receive)
        body = wire.json_object(raw)
        route = self._state.upstreams.route(MESSAGES.name, body.get("model"))
        sent, _ = route.address(body, raw)
        path = COUNT_TOKENS.removeprefix("/v1")
        answer = await route.post(path, sent, body=body, headers=MESSAGES.passed(headers), query=scope["query_string"])
        try:
            counted = await answer.read()
        finally:
            answer.close()
        await wire.send_whole(send, status=answer.status, headers=answer.headers(), body=counted)
