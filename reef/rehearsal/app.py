"""The HTTP side: an ASGI app with the part of the OpenAI and Anthropic APIs that coding agents and SDKs use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from reef.config import RehearsalConfig
from reef.rehearsal import agent, messages, proposer, responses, wire
from reef.rehearsal.conversation import ChatRequest, Conversation, understand

MAX_BODY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Dialect:
    """One form of asking and answering. All of them are read as the chat request they amount to, and answered from the same reply."""

    parse: Callable[[Any], ChatRequest]
    answer: Callable[[wire.Reply, ChatRequest, bytes], dict[str, Any]]
    events: Callable[[wire.Reply, ChatRequest, bytes], Iterator[bytes]]
    error: Callable[[str, str | None], dict[str, Any]]


def _openai_error(message: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}


def _chat_events(reply: wire.Reply, asked: ChatRequest, body: bytes) -> Iterator[bytes]:
    include_usage = asked.stream_options is not None and asked.stream_options.include_usage
    return wire.events(reply, request=body, include_usage=include_usage)


_CHAT = _Dialect(
    parse=ChatRequest.model_validate,
    answer=lambda reply, _asked, body: wire.completion(reply, request=body),
    events=_chat_events,
    error=_openai_error,
)
_RESPONSES = _Dialect(
    parse=responses.parse,
    answer=lambda reply, _asked, body: responses.whole(reply, request=body),
    events=lambda reply, _asked, body: responses.events(reply, request=body),
    error=_openai_error,
)
_MESSAGES = _Dialect(
    parse=messages.parse,
    answer=lambda reply, _asked, body: messages.whole(reply, request=body),
    events=lambda reply, _asked, body: messages.events(reply, request=body),
    error=lambda message, _param: messages.error(message),
)


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
            Route("/v1/chat/completions", _inference(_CHAT, answer), methods=["POST"]),
            Route("/v1/responses", _inference(_RESPONSES, answer), methods=["POST"]),
            Route("/v1/messages", _inference(_MESSAGES, answer), methods=["POST"]),
            Route("/v1/messages/count_tokens", _endpoint(_MESSAGES, _count_tokens), methods=["POST"]),
            Route("/v1/models", _models),
            Route("/healthz", _healthz),
            Route("/", _healthz),  # Claude Code asks for its head before anything else
        ],
        exception_handlers={HTTPException: _http_error},
    )


Answer = Callable[[Conversation], wire.Reply]


def _inference(dialect: _Dialect, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    def reply(body: bytes) -> Response:
        asked = dialect.parse(orjson.loads(body))
        said = answer(understand(asked))
        if not asked.stream:
            return _json(dialect.answer(said, asked, body))
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(_stream(dialect.events(said, asked, body)), media_type="text/event-stream", headers=headers)

    return _endpoint(dialect, reply)


def _count_tokens(body: bytes) -> Response:
    return _json(messages.count(orjson.loads(body), request=body))


def _endpoint(dialect: _Dialect, reply: Callable[[bytes], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Reads the body for ``reply``, and says in the caller's dialect what is wrong with it."""

    async def endpoint(request: Request) -> Response:
        try:
            body = await _body(request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        if body is None:
            return _json(dialect.error(f"the request is larger than {MAX_BODY_BYTES} bytes", None), status=413)
        try:
            return reply(body)
        except orjson.JSONDecodeError as error:
            return _json(dialect.error(f"the body is not valid JSON: {error}", None), status=400)
        except ValidationError as error:
            problem = error.errors()[0]
            param = ".".join(str(part) for part in problem["loc"])
            return _json(dialect.error(f"{param or 'the body'}: {problem['msg']}", param or None), status=400)

    return endpoint


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
    dialect = _MESSAGES if request.url.path.startswith("/v1/messages") else _CHAT
    return _json(dialect.error(f"{request.method} {request.url.path}: {error.detail}", None), status=error.status_code)


def _json(content: dict[str, Any], *, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")
