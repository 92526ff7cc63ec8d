"""What the server's protocol does with an answer's head, and with a client that does not finish what it began."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from reef.gateway.protocol import MAX_HEAD_BYTES, Protocol

ASKED = b"GET / HTTP/1.1\r\nhost: here\r\n"
App = Callable[[Any, Any, Any], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(app: App, *, idle_s: int = 5) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of ``app``."""
    listener = socket.create_server(("127.0.0.1", 0))
    silent = {"log_level": "error", "server_header": False, "date_header": False}
    config = uvicorn.Config(app, http=Protocol, ws="none", lifespan="off", timeout_keep_alive=idle_s, **silent)
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


PIECE = b"x" * 1000
POST = b"POST / HTTP/1.1\r\nhost: here\r\n"


async def send_all(writer: asyncio.StreamWriter, begin: bytes, again: bytes) -> None:
    """Send for as long as it is taken, and no more than a hundred times what may come of a head."""
    with contextlib.suppress(ConnectionError):
        writer.write(begin)
        for _ in range(100 * MAX_HEAD_BYTES // len(again)):
            writer.write(again)
            await writer.drain()


@pytest.mark.parametrize(
    ("begin", "again"),
    [(b"GET /", PIECE), (ASKED + b"x: ", PIECE), (ASKED, b"x: y\r\n" * 100), (ASKED + b"\r\n" + ASKED, b"x: y\r\n" * 100)],
    ids=["a target", "one header", "many headers", "of a second request"],
)
def test_a_head_without_an_end_is_refused(begin: bytes, again: bytes) -> None:
    async def run() -> None:
        async with served(whole) as (reader, writer):
            sending = asyncio.create_task(send_all(writer, begin, again))
            answer = b""
            with contextlib.suppress(ConnectionError):
                answer = await reader.read()
            await sending
            assert writer.is_closing()
            assert not answer or b"HTTP/1.1 431 " in answer  # a client that still writes may lose it

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_client_that_is_told_why_its_head_is_refused() -> None:
    async def run() -> None:
        async with served(whole) as (reader, writer):
            writer.write(ASKED + b"x: " + PIECE * 60)
            await asyncio.sleep(0.1)
            writer.write(PIECE * 10)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
            assert b'"too_large_error"' in answer

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_long_head_and_a_longer_body_have_room() -> None:
    async def run() -> None:
        async with served(whole) as (reader, writer):
            for _ in range(2):
                writer.write(POST + b"x: " + PIECE * 60 + b"\r\ncontent-length: 1000000\r\n\r\n")
                for _ in range(1000):
                    writer.write(PIECE)
                    await writer.drain()
                assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 OK")

    asyncio.run(asyncio.wait_for(run(), 20))


def test_trailers_without_an_end_end_the_connection() -> None:
    left = asyncio.Event()

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async def run() -> None:
        async with served(reading, idle_s=60) as (reader, writer):
            await send_all(writer, POST + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"x: y\r\n" * 100)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            await left.wait()

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.parametrize("sent", [b"", b"GET /", ASKED + b"x: "], ids=["nothing", "a part of a line", "no end of its head"])
def test_a_client_that_does_not_get_to_ask_is_not_waited_for(sent: bytes) -> None:
    async def run() -> None:
        async with served(whole, idle_s=1) as (reader, writer):
            writer.write(sent)
            for _ in range(30):  # now and then a little more does not help
                if reader.at_eof():
                    break
                writer.write(sent and b"y")
                with contextlib.suppress(TimeoutError):
                    assert await asyncio.wait_for(reader.read(1), 0.2) == b""
            assert reader.at_eof()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_body_that_stops_coming_ends_the_connection_and_one_that_is_slow_does_not() -> None:
    async def run() -> None:
        heard = []

        async def reading(scope: Any, receive: Any, send: Any) -> None:
            while True:
                message = await receive()
                heard.append(message["type"])
                if not message.get("more_body"):
                    break
            await whole(scope, receive, send)

        async with served(reading, idle_s=1) as (reader, writer):
            writer.write(POST + b"content-length: 5\r\n\r\n")
            for _ in range(5):
                await asyncio.sleep(0.5)
                writer.write(b"x")
            assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 OK")
            assert heard[-1] == "http.request"
            writer.write(POST + b"content-length: 5\r\n\r\nxx")
            assert await reader.read() == b""
            assert heard[-1] == "http.disconnect"

    asyncio.run(asyncio.wait_for(run(), 20))


def test_an_answer_that_takes_long_is_waited_for() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(2.5)
        await whole(scope, receive, send)

    async def run() -> None:
        async with served(slow, idle_s=1) as (reader, writer):
            writer.write(POST + b"content-length: 0\r\n\r\n")
            assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 OK")

    asyncio.run(asyncio.wait_for(run(), 20))
