"""Scripted answers of the fake upstream in the dialects beside chat: whole, and as the streams that say the same."""

from __future__ import annotations

import json
from typing import Any

from tests.support.upstream import Reply, Seen, greeting, stream, whole
from tests.support.upstream import message as completion

INPUT = {"path": "hello.txt", "content": "hé\U0001f600"}
"""What the tool of the scripted answers is called with."""


def named(name: str, **data: Any) -> bytes:
    """One event with a name, which its data repeats."""
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


def message() -> dict[str, Any]:
    """A message with a text and a call of a tool."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "fake-1",
        "content": [
            {"type": "thinking", "thinking": "hm, hm", "signature": "sig=="},
            {"type": "text", "text": "hello"},
            {"type": "tool_use", "id": "toolu_1", "name": "write", "input": INPUT},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 4, "output_tokens": 3},
    }


def message_events() -> list[bytes]:
    """The stream that says :func:`message`."""
    whole_message = message()
    thinking, text, tool = whole_message["content"]
    begun = {**whole_message, "content": [], "stop_reason": None, "usage": {**whole_message["usage"], "output_tokens": 1}}
    arguments = json.dumps(INPUT)
    return [
        named("message_start", message=begun),
        named("content_block_start", index=0, content_block={**thinking, "thinking": "", "signature": ""}),
        named("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm, "}),
        named("ping"),
        named("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
        named("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "sig=="}),
        named("content_block_stop", index=0),
        named("content_block_start", index=1, content_block={**text, "text": ""}),
        named("content_block_delta", index=1, delta={"type": "text_delta", "text": "hel"}),
        named("content_block_delta", index=1, delta={"type": "text_delta", "text": "lo"}),
        named("content_block_stop", index=1),
        named("content_block_start", index=2, content_block={**tool, "input": {}}),
        named("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": ""}),
        named("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": arguments[:9]}),
        named("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": arguments[9:]}),
        named("content_block_stop", index=2),
        named("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage={"output_tokens": 3}),
        named("message_stop"),
    ]


def response(status: str = "completed") -> dict[str, Any]:
    """A response with reasoning, a text and a call of a tool."""
    text = {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1700000000,
        "status": status,
        "error": None,
        "model": "fake-1",
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm, hm"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [text]},
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": "write",
                "arguments": json.dumps(INPUT),
                "status": "completed",
            },
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 10,
        },
    }


def response_events() -> list[bytes]:
    """The stream that says :func:`response`."""
    done = response()
    reasoning, said, call = done["output"]
    begun = {**done, "status": "in_progress", "output": [], "usage": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        ("response.output_item.added", {"output_index": 0, "item": {**reasoning, "summary": []}}),
        ("response.reasoning_summary_part.added", {"output_index": 0, "summary_index": 0, "part": {"type": "summary_text", "text": ""}}),
        ("response.reasoning_summary_text.delta", {"output_index": 0, "summary_index": 0, "delta": "hm, "}),
        ("response.reasoning_summary_text.delta", {"output_index": 0, "summary_index": 0, "delta": "hm"}),
        ("response.output_item.done", {"output_index": 0, "item": reasoning}),
        ("response.output_item.added", {"output_index": 1, "item": {**said, "status": "in_progress", "content": []}}),
        ("response.content_part.added", {"output_index": 1, "content_index": 0, "part": {**said["content"][0], "text": ""}}),
        ("response.output_text.delta", {"output_index": 1, "content_index": 0, "delta": "hel", "logprobs": []}),
        ("response.output_text.delta", {"output_index": 1, "content_index": 0, "delta": "lo", "logprobs": []}),
        ("response.output_text.done", {"output_index": 1, "content_index": 0, "text": "hello", "logprobs": []}),
        ("response.content_part.done", {"output_index": 1, "content_index": 0, "part": said["content"][0]}),
        ("response.output_item.done", {"output_index": 1, "item": said}),
        ("response.output_item.added", {"output_index": 2, "item": {**call, "status": "in_progress", "arguments": ""}}),
        ("response.function_call_arguments.delta", {"output_index": 2, "item_id": "fc_1", "delta": call["arguments"][:9]}),
        ("response.function_call_arguments.delta", {"output_index": 2, "item_id": "fc_1", "delta": call["arguments"][9:]}),
        ("response.output_item.done", {"output_index": 2, "item": call}),
        ("response.completed", {"response": done}),
    ]
    return [named(name, sequence_number=number, **data) for number, (name, data) in enumerate(events)]


def answer(seen: Seen) -> Reply:
    """An answer in the dialect and the form that was asked for."""
    path = seen.path.partition("?")[0]
    if path.endswith("/count_tokens"):
        return whole({"input_tokens": 7})
    if path.endswith("/models"):
        return whole({"object": "list", "data": []})
    streamed = seen.body.get("stream")
    if path.endswith("/messages"):
        return stream(*message_events()) if streamed else whole(message())
    if path.endswith("/responses"):
        return stream(*response_events()) if streamed else whole(response())
    return stream(*greeting()) if streamed else whole(completion())
