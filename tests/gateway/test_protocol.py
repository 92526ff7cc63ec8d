"""What the server's protocol does with an answer's head."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvicorn

from reef.gateway.protocol import Protocol

ASKED = b"GET / HTTP/1.1\r\nhost: here\r\n"
App = Callable[[Any, Any, Any], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(app: App) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of ``app``."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=Protocol, ws="none", lifespan="off", log_level="error", server_header=False, date_header=False)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await running


async def whole(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})


def test_a_head_and_its_body_arrive_together_and_the_connection_lives_on() -> None:
    async def run() -> None:
        async with served(whole) as (reader, writer):
            for _ in range(3):
                writer.write(ASKED + b"\r\n")
                assert (await reader.read(65_536)) == b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone"

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_head_whose_body_is_late_leaves_by_itself() -> None:
    go_on = asyncio.Event()

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"HTTP/1.1 is no head here", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def run() -> None:
        async with served(late) as (reader, writer):
            writer.write(ASKED + b"\r\n")
            assert (await reader.read(65_536)).endswith(b"\r\n\r\n")
            go_on.set()
            assert await reader.readuntil(b"0\r\n\r\n") == b"18\r\nHTTP/1.1 is no head here\r\n0\r\n\r\n"

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_connection_that_is_to_be_closed_gets_all_of_its_answer() -> None:
    async def bare(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> None:
        for app, end in ((whole, b"done"), (bare, b"\r\n\r\n")):
            async with served(app) as (reader, writer):
                writer.write(ASKED + b"connection: close\r\n\r\n")
                answer = await reader.read()
                assert answer.startswith(b"HTTP/1.1 20")
                assert answer.endswith(end)

    asyncio.run(asyncio.wait_for(run(), 20))
