"""The HTTP side: an ASGI app with the part of the OpenAI API that coding agents and SDKs use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from reef.config import RehearsalConfig
from reef.rehearsal import agent, proposer, wire
from reef.rehearsal.conversation import ChatRequest, Conversation, understand

MAX_BODY_BYTES = 64 << 20


def create_app(config: RehearsalConfig) -> Starlette:
    """The stand-in model as an ASGI app.

    Raises:
        ConfigError: the script of proposals cannot be played.
    """
    proposer.check_script(config.proposals)

    def answer(conversation: Conversation) -> wire.Reply:
        if proposer.is_asked(conversation):
            return proposer.propose(conversation, script=config.proposals)
        return agent.next_step(conversation)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", _chat(answer), methods=["POST"]),
            Route("/v1/models", _models),
            Route("/healthz", _healthz),
        ],
        exception_handlers={HTTPException: _http_error},
    )


def _chat(answer: Callable[[Conversation], wire.Reply]) -> Callable[[Request], Awaitable[Response]]:
    async def chat(request: Request) -> Response:
        try:
            body = await _body(request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        if body is None:
            return _error(413, f"the request is larger than {MAX_BODY_BYTES} bytes")
        try:
            asked = ChatRequest.model_validate(orjson.loads(body))
        except orjson.JSONDecodeError as error:
            return _error(400, f"the body is not valid JSON: {error}")
        except ValidationError as error:
            problem = error.errors()[0]
            param = ".".join(str(part) for part in problem["loc"])
            return _error(400, f"{param or 'the body'}: {problem['msg']}", param=param or None)
        reply = answer(understand(asked))
        if not asked.stream:
            return _json(wire.completion(reply, request=body))
        include_usage = asked.stream_options is not None and asked.stream_options.include_usage
        return StreamingResponse(
            _stream(wire.events(reply, request=body, include_usage=include_usage)),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    return chat


async def _stream(events: Iterator[bytes]) -> Any:
    """Straight from the loop: a plain iterator would be sent through a thread for every chunk."""
    for event in events:
        yield event


async def _body(request: Request) -> bytes | None:
    """The body, or None where it is beyond the bound."""
    pieces = bytearray()
    async for piece in request.stream():
        pieces += piece
        if len(pieces) > MAX_BODY_BYTES:
            return None
    return bytes(pieces)


async def _models(_request: Request) -> Response:
    model = {"id": wire.MODEL, "object": "model", "created": wire.CREATED, "owned_by": "reef"}
    return _json({"object": "list", "data": [model]})


async def _healthz(_request: Request) -> Response:
    return _json({"status": "ok", "model": wire.MODEL})


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}")


def _error(status: int, message: str, *, param: str | None = None) -> Response:
    return _json({"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}, status=status)


def _json(content: dict[str, Any], *, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")
