"""A model server that costs next to nothing: fixed answers from a raw asyncio protocol. Usage: mock_upstream.py PORT

It speaks chat, responses and messages. A request whose body asks for a stream gets about 20 events, each written on its own; any other gets
one JSON answer. To the model called `slow` it answers slowly, so that a client can leave before the first byte and in mid-stream.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import uvloop

TEXT = "The quick brown fox jumps over the lazy dog and writes a test for it. "
PIECES = 16
FIRST_BYTE_S = 0.1
"""What the model `slow` takes before it says anything; and then as much for half of its events."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


@dataclass(frozen=True)
class Script:
    """What is answered in one dialect."""

    whole: bytes
    events: list[bytes]
    """Each a chunk of the body; the last one ends it, too."""


def _whole(body: Any) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data


def _script(whole: Any, events: Iterator[bytes]) -> Script:
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    chunks[-1] += LAST
    return Script(_whole(whole), chunks)


def _chat() -> Script:
    usage = {"prompt_tokens": 850, "completion_tokens": 60, "total_tokens": 910}
    common = {"id": "chatcmpl-bench", "created": 1700000000, "model": "m"}
    message = {"role": "assistant", "content": TEXT * 4, "refusal": None}

    def event(choices: list[Any], **more: Any) -> bytes:
        return b"data: " + json.dumps({**common, "object": "chat.completion.chunk", "choices": choices, **more}).encode() + b"\n\n"

    def delta(content: dict[str, str], finish: str | None = None) -> bytes:
        return event([{"index": 0, "delta": content, "finish_reason": finish}])

    def events() -> Iterator[bytes]:
        yield delta({"role": "assistant", "content": ""})
        for _ in range(PIECES):
            yield delta({"content": TEXT[:16]})
        yield delta({}, "stop")
        yield event([], usage=usage)
        yield b"data: [DONE]\n\n"

    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return _script({**common, "object": "chat.completion", "choices": [choice], "usage": usage}, events())


def _named(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def _messages() -> Script:
    whole = {
        "id": "msg_bench", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": TEXT * 4}],
        "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 850, "output_tokens": 60},
    }  # fmt: skip

    def events() -> Iterator[bytes]:
        yield _named("message_start", message={**whole, "content": [], "stop_reason": None})
        yield _named("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for _ in range(PIECES):
            yield _named("content_block_delta", index=0, delta={"type": "text_delta", "text": TEXT[:16]})
        yield _named("content_block_stop", index=0)
        yield _named("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 60})
        yield _named("message_stop")

    return _script(whole, events())


def _responses() -> Script:
    usage = {"input_tokens": 850, "output_tokens": 60, "total_tokens": 910}
    begun = {"id": "resp_bench", "object": "response", "created_at": 1700000000, "model": "m", "error": None, "output": [], "usage": None}

    def item(text: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {"id": "msg_bench", "type": "message", "role": "assistant", "status": "completed", "content": [part]}

    def done(text: str) -> dict[str, Any]:
        return {**begun, "status": "completed", "output": [item(text)], "usage": usage}

    def events() -> Iterator[bytes]:
        text = TEXT[:16] * PIECES
        at = {"item_id": "msg_bench", "output_index": 0, "content_index": 0}
        yield _named("response.created", sequence_number=0, response={**begun, "status": "in_progress"})
        added = {**item(""), "status": "in_progress", "content": []}
        yield _named("response.output_item.added", sequence_number=1, output_index=0, item=added)
        yield _named("response.content_part.added", sequence_number=2, part=item("")["content"][0], **at)
        for number in range(PIECES):
            yield _named("response.output_text.delta", sequence_number=3 + number, delta=TEXT[:16], logprobs=[], **at)
        yield _named("response.output_text.done", sequence_number=PIECES + 3, text=text, logprobs=[], **at)
        yield _named("response.content_part.done", sequence_number=PIECES + 4, part=item(text)["content"][0], **at)
        yield _named("response.output_item.done", sequence_number=PIECES + 5, output_index=0, item=item(text))
        yield _named("response.completed", sequence_number=PIECES + 6, response=done(text))

    return _script(done(TEXT * 4), events())


CHAT = _chat()
OTHERS = {b"/v1/responses": _responses(), b"/v1/messages": _messages()}


def _is(value: bytes, text: bytes, at: int) -> bool:
    """Whether the key that stands at ``at``, if one does, has this value."""
    return at >= 0 and text[at : at + 32].partition(b":")[2].lstrip().startswith(value)


class Mock(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.buffer = buffer = self.buffer + data if self.buffer else data
        start = buffer.find(b"\r\n\r\n") + 4
        if start < 4:
            return
        head = buffer[:start].lower()
        _, named, length = head.partition(b"content-length:")
        end = start + int(length.split(b"\r\n", 1)[0]) if named else start
        if len(buffer) < end:
            return
        self.buffer = buffer[end:]
        self.script = OTHERS.get(head.split(b" ", 2)[1].partition(b"?")[0], CHAT)
        streamed = _is(b"true", buffer, buffer.rfind(b'"stream":', start, end))  # where most clients have them: no body is searched twice
        if _is(b'"slow"', buffer, buffer.find(b'"model":', start, end)):
            asyncio.get_running_loop().call_later(FIRST_BYTE_S, self.begin, streamed, FIRST_BYTE_S * 2 / len(self.script.events))
        else:
            self.begin(streamed, 0)

    def begin(self, streamed: bool, pace_s: float) -> None:
        if self.transport.is_closing():
            return
        if streamed:
            self.transport.write(HEAD)
            self.send(0, pace_s)
        else:
            self.transport.write(self.script.whole)

    def send(self, number: int, pace_s: float) -> None:
        if self.transport.is_closing():
            return
        events = self.script.events
        self.transport.write(events[number])
        if number + 1 == len(events):
            return
        loop = asyncio.get_running_loop()
        if pace_s:
            loop.call_later(pace_s, self.send, number + 1, pace_s)
        else:
            loop.call_soon(self.send, number + 1, 0)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
