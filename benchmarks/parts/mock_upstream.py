"""A model server that costs next to nothing: fixed answers from a raw asyncio protocol. Usage: mock_upstream.py PORT

A request whose body asks for a stream gets 20 events, each written on its own; any other gets one JSON answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import uvloop

TEXT = "The quick brown fox jumps over the lazy dog and writes a test for it. "
CHUNKS = 20


def _json_answer() -> bytes:
    body = json.dumps(
        {
            "id": "chatcmpl-bench", "object": "chat.completion", "created": 1700000000, "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT * 4, "refusal": None}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 850, "completion_tokens": 60, "total_tokens": 910},
        }
    ).encode()  # fmt: skip
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _events() -> list[bytes]:
    def event(choices: list[object], **more: object) -> bytes:
        data = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1700000000, "model": "m", "choices": choices, **more}
        body = b"data: " + json.dumps(data).encode() + b"\n\n"
        return b"%x\r\n%b\r\n" % (len(body), body)

    def delta(content: dict[str, str], finish: str | None = None) -> bytes:
        return event([{"index": 0, "delta": content, "finish_reason": finish}])

    texts = [delta({"content": TEXT[:16]}) for _ in range(CHUNKS - 4)]
    usage = event([], usage={"prompt_tokens": 850, "completion_tokens": 60, "total_tokens": 910})
    done = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    return [delta({"role": "assistant", "content": ""}), *texts, delta({}, "stop"), usage, done]


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWER, EVENTS = _json_answer(), _events()


class Mock(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        start = head.find(b"content-length:")
        length = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
        if len(self.buffer) < end + 4 + length:
            return
        body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
        if b'"stream": true' in body or b'"stream":true' in body:
            self.transport.write(HEAD)
            self.send(0)
        else:
            self.transport.write(ANSWER)

    def send(self, number: int) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(EVENTS[number])
        if number + 1 < len(EVENTS):
            asyncio.get_running_loop().call_soon(self.send, number + 1)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
