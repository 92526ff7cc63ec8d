"""The Responses dialect: a request read as the chat request it amounts to, and an answer as a ``response`` or its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

from reef.rehearsal import wire
from reef.rehearsal.conversation import ChatRequest
from reef.rehearsal.wire import Reply
from reef.types import JSON


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: str
    text: str = ""


class _Item(BaseModel):
    """Of an item's kind depends what it must hold; what is checked here is what is used."""

    model_config = ConfigDict(extra="allow")
    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[_Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    input: str = ""
    output: str | list[_Part] = ""


class _Tool(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: str
    name: str = ""
    parameters: dict[str, Any] | None = None


class _Request(BaseModel):
    model: str
    input: list[_Item] = Field(min_length=1)
    instructions: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: JSON = None
    stream: bool | None = None

    @field_validator("input", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return [{"role": "user", "content": value}] if isinstance(value, str) else value


def parse(body: JSON) -> ChatRequest:
    """The chat request this one amounts to. Reasoning and what a hosted tool left carry nothing that is understood here.

    Raises:
        ValidationError: it is not a request of this dialect.
    """
    asked = _Request.model_validate(body)
    messages: list[dict[str, Any]] = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    for item in asked.input:
        messages += _messages(item)
    functions = [tool for tool in asked.tools or () if tool.type == "function"]
    tools = [{"type": "function", "function": {"name": tool.name, "parameters": tool.parameters or {}}} for tool in functions]
    return ChatRequest.model_validate(
        {"model": asked.model, "messages": messages, "tools": tools, "tool_choice": asked.tool_choice, "stream": asked.stream}
    )


def _messages(item: _Item) -> list[dict[str, Any]]:
    if item.type == "message":
        content = item.content if isinstance(item.content, str) else [part.model_dump() for part in item.content or ()]
        return [{"role": item.role or "user", "content": content}]
    if item.type in ("function_call", "custom_tool_call"):
        arguments = item.arguments or orjson.dumps({"input": item.input}).decode()
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": arguments}}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}]
    if item.type in ("function_call_output", "custom_tool_call_output"):
        output = item.output if isinstance(item.output, str) else "\n".join(part.text for part in item.output)
        return [{"role": "tool", "tool_call_id": item.call_id, "content": output}]
    return []


def whole(reply: Reply, *, request: bytes) -> dict[str, Any]:
    """The answer as one ``response``."""
    return _response(request, status="completed", output=_items(reply, request=request), usage=_usage(reply, request=request))


def events(reply: Reply, *, request: bytes) -> Iterator[bytes]:
    """The same answer as server-sent events."""
    for number, (kind, data) in enumerate(_events(reply, request=request)):
        yield wire.sse({"type": kind, "sequence_number": number, **data}, event=kind)


def _events(reply: Reply, *, request: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = _response(request, status="in_progress", output=[], usage=None)
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(_items(reply, request=request)):
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield "response.output_item.added", {"output_index": index, "item": {**item, **empty, "status": "in_progress"}}
        at = {"item_id": item["id"], "output_index": index}
        yield from _text(item["content"][0], at=at) if item["type"] == "message" else _arguments(item, at=at)
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield "response.completed", {"response": whole(reply, request=request)}


def _text(part: Mapping[str, Any], *, at: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    at = {**at, "content_index": 0}
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    for piece in wire.pieces(part["text"]):
        yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**at, "part": part}


def _arguments(call: Mapping[str, Any], *, at: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for piece in wire.pieces(call["arguments"]):
        yield "response.function_call_arguments.delta", {**at, "delta": piece}
    yield "response.function_call_arguments.done", {**at, "name": call["name"], "arguments": call["arguments"]}


def _items(reply: Reply, *, request: bytes) -> list[dict[str, Any]]:
    name = wire.digest(request)
    items: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        items.append({"id": f"msg_{name}", "type": "message", "status": "completed", "role": "assistant", "content": [part]})
    for index, call in enumerate(reply.calls):
        what = {"name": call.name, "arguments": wire.arguments(call), "call_id": wire.call_id(request, index)}
        items.append({"id": f"fc_{name}{index}", "type": "function_call", "status": "completed", **what})
    return items


def _response(request: bytes, *, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": f"resp_{wire.digest(request)}",
        "object": "response",
        "created_at": wire.CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": wire.MODEL,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
    }


def _usage(reply: Reply, *, request: bytes) -> dict[str, Any]:
    counted = wire.usage(reply, request=request)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }
