"""A small OpenAI-compatible server that says exactly what a test scripted, byte by byte, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Piece = bytes | threading.Event
End = Literal["clean", "reset", "close", "hang"]


@dataclass
class Reply:
    """One scripted answer.

    ``pieces`` are sent one by one, each in a write of its own; an Event among them is waited for. Then the body ends as it should
    (``clean``), with a TCP reset, with a plain close in mid-body, or not at all until the caller hangs up.
    """

    pieces: Sequence[Piece] = ()
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    end: End = "clean"
    silent: bool = False
    """Not even a status line; ``end`` says what happens instead."""
    before: threading.Event | None = None
    """Waited for before anything is said."""


@dataclass
class Seen:
    """One request that came in."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    hung_up: threading.Event = field(default_factory=threading.Event)
    """Set when the caller closed the connection before the answer was whole."""

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


def message(content: str | None = "hello", **more: Any) -> dict[str, Any]:
    """A chat completion."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "fake-1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content, "refusal": None, **more}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def whole(value: Any = None, **options: Any) -> Reply:
    """A JSON answer, with the spacing that Python's json module writes."""
    return Reply(pieces=[json.dumps(message() if value is None else value).encode()], **options)


def chunk(delta: dict[str, Any] | None = None, *, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    """One event of a stream."""
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}]
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "fake-1", "choices": choices, **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream(*pieces: Piece, **options: Any) -> Reply:
    """A streamed answer; a greeting if no pieces are given."""
    return Reply(pieces=pieces or greeting(), content_type="text/event-stream", **options)


def greeting() -> list[bytes]:
    """A complete stream that says hello."""
    return [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "hel"}),
        chunk({"content": "lo"}),
        chunk({}, finish="stop"),
        chunk(None, usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}),
        DONE,
    ]


class FakeUpstream:
    """Serves on a free loopback port from a thread of its own.

    Args:
        answer: gives the reply to each request; by default ``replies`` are used up in order, and then everything gets a greeting in
            the form it asked for.
    """

    def __init__(self, answer: Callable[[Seen], Reply] | None = None) -> None:
        self.seen: list[Seen] = []
        self.replies: list[Reply] = []
        self._answer = answer or self._next
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def __enter__(self) -> FakeUpstream:
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _next(self, seen: Seen) -> Reply:
        if seen.path.endswith("/models"):
            return whole({"object": "list", "data": [{"id": "fake-1", "object": "model"}]})
        if self.replies:
            return self.replies.pop(0)
        return stream() if seen.body.get("stream") else whole()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        seen = Seen(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
        self.seen.append(seen)
        reply = self._answer(seen)
        watch = asyncio.create_task(reader.read(1))
        watch.add_done_callback(lambda done: None if done.cancelled() else seen.hung_up.set())
        try:
            return await self._send(reply, writer, watch)
        except OSError:  # in the middle of what is sent
            seen.hung_up.set()
            raise
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _send(self, reply: Reply, writer: asyncio.StreamWriter, hung_up: asyncio.Task[bytes]) -> bool:
        if reply.before is not None:
            await asyncio.to_thread(reply.before.wait, 20)
        if not reply.silent:
            headers = {"content-type": reply.content_type, "transfer-encoding": "chunked", **reply.headers}
            lines = [f"HTTP/1.1 {reply.status} X", *(f"{name}: {value}" for name, value in headers.items())]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        for piece in reply.pieces:
            if isinstance(piece, threading.Event):
                await asyncio.to_thread(piece.wait, 20)
                continue
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
        if reply.end == "clean":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        if reply.end == "hang":
            await asyncio.wait([hung_up], timeout=20)
        if reply.end == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return False


@contextlib.contextmanager
def upstream(answer: Callable[[Seen], Reply] | None = None) -> Iterator[FakeUpstream]:
    """A running fake upstream."""
    with FakeUpstream(answer) as server:
        yield server
