"""What the model says, and the bytes of it as a ``chat.completion`` or its SSE chunks. The other dialects have modules of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from reef.types import JSON

MODEL = "rehearsal-1"
"""The only model there is. Every answer is signed with it, whatever name was asked for."""

CREATED = 1_700_000_000
"""Answers carry a fixed time: the same request gets the same bytes."""

_PIECE = 12
"""Characters in one delta: small enough that every text and every argument arrives split, as from a real server."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool the request offered."""

    name: str
    arguments: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says next: text, or calls, or both."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.calls else "stop"


def digest(body: bytes) -> str:
    """The name of a request; its answer's ids are made from it."""
    return hashlib.sha256(body).hexdigest()[:24]


def completion(reply: Reply, *, request: bytes) -> dict[str, Any]:
    """The whole answer as a ``chat.completion``."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": call_id(request, index), "type": "function", "function": {"name": call.name, "arguments": arguments(call)}}
            for index, call in enumerate(reply.calls)
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish_reason}
    return {**_head("chat.completion", request), "choices": [choice], "usage": usage(reply, request=request)}


def events(reply: Reply, *, request: bytes, include_usage: bool) -> Iterator[bytes]:
    """The same answer as server-sent events, ``[DONE]`` included."""
    head = _head("chat.completion.chunk", request)
    tail = {"usage": None} if include_usage else {}

    def event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse({**head, "choices": [choice], **tail})

    yield event({"role": "assistant", "content": ""})
    for piece in pieces(reply.text):
        yield event({"content": piece})
    for index, call in enumerate(reply.calls):
        opening = {"index": index, "id": call_id(request, index), "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield event({"tool_calls": [opening]})
        for piece in pieces(arguments(call)):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield event({}, reply.finish_reason)
    if include_usage:
        yield sse({**head, "choices": [], "usage": usage(reply, request=request)})
    yield b"data: [DONE]\n\n"


def usage(reply: Reply, *, request: bytes) -> dict[str, int]:
    """Token counts at four bytes a token: there is no tokenizer here, but clients add these numbers up."""
    said = len(reply.text.encode()) + sum(len(call.name) + len(arguments(call).encode()) for call in reply.calls)
    prompt, answer = -(-len(request) // 4), -(-said // 4)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _head(kind: str, request: bytes) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-rehearsal-{digest(request)}",
        "object": kind,
        "created": CREATED,
        "model": MODEL,
        "system_fingerprint": "reef-rehearsal",
    }


def call_id(request: bytes, index: int) -> str:
    return f"call_{digest(request)}{index}"


def arguments(call: ToolCall) -> str:
    return orjson.dumps(dict(call.arguments)).decode()


def pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]


def sse(data: dict[str, Any], *, event: str = "") -> bytes:
    return (f"event: {event}\n".encode() if event else b"") + b"data: " + orjson.dumps(data) + b"\n\n"
