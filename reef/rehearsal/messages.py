"""The Messages dialect: a request read as the chat request it amounts to, and an answer as a ``message`` or its events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from reef.rehearsal import wire
from reef.rehearsal.conversation import ChatRequest
from reef.rehearsal.wire import Reply
from reef.types import JSON


class _Text(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: str
    text: str = ""


class _Block(_Text):
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str = ""
    content: str | list[_Text] | None = None


class _Message(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    input_schema: dict[str, Any] = Field(default_factory=dict)


class _Prompt(BaseModel):
    """What both a request and a question for its number of tokens hold."""

    model: str
    messages: list[_Message] = Field(min_length=1)
    system: str | list[_Text] | None = None
    tools: list[_Tool] | None = None
    tool_choice: JSON = None


class _Request(_Prompt):
    max_tokens: int = Field(ge=1)
    stream: bool | None = None


def parse(body: JSON) -> ChatRequest:
    """The chat request this one amounts to.

    Raises:
        ValidationError: it is not a request of this dialect.
    """
    asked = _Request.model_validate(body)
    system = asked.system if isinstance(asked.system, str) else "\n\n".join(block.text for block in asked.system or ())
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in asked.messages:
        messages += _messages(message)
    tools = [{"type": "function", "function": {"name": tool.name, "parameters": tool.input_schema}} for tool in asked.tools or ()]
    forbidden = isinstance(asked.tool_choice, dict) and asked.tool_choice.get("type") == "none"
    choice = "none" if forbidden else None
    return ChatRequest.model_validate(
        {"model": asked.model, "messages": messages, "tools": tools, "tool_choice": choice, "stream": asked.stream}
    )


def _messages(message: _Message) -> list[dict[str, Any]]:
    """Results are messages of their own in a chat, and come before what is said beside them."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results = [block for block in message.content if block.type == "tool_result"]
    calls = [block for block in message.content if block.type == "tool_use"]
    texts = [{"type": "text", "text": block.text} for block in message.content if block.type == "text"]
    said: list[dict[str, Any]] = [{"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)} for block in results]
    if not texts and not calls:
        return said
    spoken: dict[str, Any] = {"role": message.role, "content": texts}
    if calls:
        spoken["tool_calls"] = [
            {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": orjson.dumps(block.input).decode()}}
            for block in calls
        ]
    return [*said, spoken]


def _result(block: _Block) -> str:
    return block.content if isinstance(block.content, str) else "\n".join(part.text for part in block.content or ())


def whole(reply: Reply, *, request: bytes) -> dict[str, Any]:
    """The answer as one ``message``."""
    said = _message(request, output_tokens=wire.usage(reply, request=request)["completion_tokens"])
    return {**said, "content": _blocks(reply, request=request), "stop_reason": _stop_reason(reply)}


def events(reply: Reply, *, request: bytes) -> Iterator[bytes]:
    """The same answer as server-sent events."""
    for kind, data in _events(reply, request=request):
        yield wire.sse({"type": kind, **data}, event=kind)


def _events(reply: Reply, *, request: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "message_start", {"message": _message(request, output_tokens=1)}
    yield "ping", {}
    for index, block in enumerate(_blocks(reply, request=request)):
        empty: dict[str, Any] = {"text": ""} if block["type"] == "text" else {"input": {}}
        yield "content_block_start", {"index": index, "content_block": {**block, **empty}}
        kind, key = ("text_delta", "text") if block["type"] == "text" else ("input_json_delta", "partial_json")
        content = block["text"] if block["type"] == "text" else orjson.dumps(block["input"]).decode()
        for piece in wire.pieces(content):
            yield "content_block_delta", {"index": index, "delta": {"type": kind, key: piece}}
        yield "content_block_stop", {"index": index}
    end = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    yield "message_delta", {"delta": end, "usage": {"output_tokens": wire.usage(reply, request=request)["completion_tokens"]}}
    yield "message_stop", {}


def count(body: JSON, *, request: bytes) -> dict[str, Any]:
    """The answer to ``count_tokens``.

    Raises:
        ValidationError: it is not a request of this dialect.
    """
    _Prompt.model_validate(body)
    return {"input_tokens": wire.usage(Reply(), request=request)["prompt_tokens"]}


def error(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def _blocks(reply: Reply, *, request: bytes) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    for index, call in enumerate(reply.calls):
        blocks.append({"type": "tool_use", "id": f"toolu_{wire.digest(request)}{index}", "name": call.name, "input": dict(call.arguments)})
    return blocks


def _stop_reason(reply: Reply) -> str:
    return "tool_use" if reply.calls else "end_turn"


def _message(request: bytes, *, output_tokens: int) -> dict[str, Any]:
    used = wire.usage(Reply(), request=request)["prompt_tokens"]
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {
        "id": f"msg_{wire.digest(request)}",
        "type": "message",
        "role": "assistant",
        "model": wire.MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": used, **cached, "output_tokens": output_tokens},
    }
