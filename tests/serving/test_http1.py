"""The upstream client: what it takes for an answer, what it takes for a broken one, and which connections it uses again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from reef.errors import InvalidRequest
from reef.serving import http1
from reef.serving.passthrough import header_lines

HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class Server:
    """Sends what a test scripted, one script for each connection and in it one for each request: pieces, then perhaps the end."""

    def __init__(self, *connections: Sequence[Sequence[bytes | None]]) -> None:
        self._scripts = list(connections)
        self.connections = 0
        self.requests = 0
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.connections, len(self._scripts) - 1)]
        self.connections += 1
        for answer in script:
            try:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            self.requests += 1
            for piece in answer:
                if piece is None:
                    writer.close()
                    return
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        await reader.read()
        self.left.set()
        writer.close()


@asynccontextmanager
async def pool(server: Server, *, timeout_s: float = 5.0) -> AsyncIterator[http1.Pool]:
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        found = http1.Pool(URL(f"http://127.0.0.1:{port}"), connect_timeout_s=5.0, timeout_s=timeout_s)
        yield found
        found.close()


async def ask(connections: http1.Pool) -> tuple[int, bytes]:
    response = await connections.request(HEAD, b"{}")
    return response.status, await response.read(most=1 << 20)


def run(test: Callable[[], object]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pieces", "status", "body"),
    [
        ([OK], 200, b"hi"),
        ([bytes([byte]) for byte in OK], 200, b"hi"),
        ([b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", OK], 200, b"hi"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], 200, b"hi"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], 204, b""),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;x=y\r\nh\r\n", b"1\r\ni\r\n0\r\ntrailer: x\r\n\r\n"], 200, b"hi"),
        ([b"HTTP/1.1 200 OK\r\n\r\nh", b"i", None], 200, b"hi"),
        ([b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", None], 200, b"hi"),
    ],
)
def test_answers(pieces: list[bytes | None], status: int, body: bytes) -> None:
    async def test() -> None:
        async with pool(Server([pieces])) as connections:
            assert await ask(connections) == (status, body)

    run(test)


@pytest.mark.parametrize(
    "pieces",
    [
        [None],
        [b"HTTP/1.1 200 OK\r\ncontent-le", None],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi", None],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n", None],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"],
        [b"SSH-2.0-OpenSSH_9.2\r\n"],
        [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nx: " + b"x" * http1.MAX_HEAD_BYTES + b"\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nx: ", *[b"x" * 10_000] * 15],
        [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 1000] * 4,
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx: ", *[b"x" * 10_000] * 15],
    ],
)
def test_what_is_not_a_whole_answer_is_broken(pieces: list[bytes | None]) -> None:
    async def test() -> None:
        async with pool(Server([pieces]), timeout_s=2.0) as connections:
            with pytest.raises(http1.Broken):
                await ask(connections)

    run(test)


def test_what_arrived_before_it_broke_can_be_taken() -> None:
    async def test() -> None:
        async with pool(Server([[b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi", None]])) as connections:
            response = await connections.request(HEAD, b"{}")
            assert await response.next() == b"hi"
            with pytest.raises(http1.Broken):
                await response.next()

    run(test)


def test_a_connection_is_used_again_and_one_that_was_closed_meanwhile_is_replaced() -> None:
    async def test() -> None:
        server = Server([[OK], [OK, None]], [[OK]])
        async with pool(server) as connections:
            for _ in range(2):
                assert await ask(connections) == (200, b"hi")
            assert server.connections == 1
            while connections._open:
                await asyncio.sleep(0)
            assert await ask(connections) == (200, b"hi")
            assert (server.connections, server.requests) == (2, 3)

    run(test)


def test_nothing_is_sent_twice() -> None:
    async def test() -> None:
        server = Server([[OK], [None]], [[OK]])
        async with pool(server) as connections:
            await ask(connections)
            with pytest.raises(http1.Broken):  # a model may be at work on it: whether to ask again is for who configures retries
                await ask(connections)
            assert server.requests == 2

    run(test)


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstray", b"nonsense"])
def test_what_nobody_asked_for_answers_nothing(more: bytes) -> None:
    async def test() -> None:
        server = Server([[OK + more]], [[OK]])
        async with pool(server) as connections:
            assert await ask(connections) == (200, b"hi")
            assert await ask(connections) == (200, b"hi")

    run(test)


def test_silence_is_told_and_cuts_the_connection() -> None:
    async def test() -> None:
        server = Server([[b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nh"]])
        async with pool(server, timeout_s=0.1) as connections:
            with pytest.raises(http1.Silent):
                await ask(connections)
            async with asyncio.timeout(5):
                await server.left.wait()

    run(test)


def test_whoever_stops_waiting_stops_the_server() -> None:
    async def test() -> None:
        server = Server([[]], [[b""]])
        async with pool(server) as connections:
            waiting = asyncio.create_task(ask(connections))
            while not server.connections:
                await asyncio.sleep(0)
            waiting.cancel()
            async with asyncio.timeout(5):
                await server.left.wait()

    run(test)


def test_a_slow_reader_stops_the_reading() -> None:
    async def test() -> None:
        size = 64 << 20
        server = Server([[b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size, *([bytes(1 << 20)] * 64)]])
        async with pool(server) as connections:
            response = await connections.request(HEAD, b"{}")
            while not response.paused:
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            got = 0
            most = 0
            while part := await response.next():
                got += len(part)
                most = max(most, len(part))
            assert got == size
            assert most < 4 * http1.MAX_WAITING_BYTES

    run(test)


def test_idle_connections_are_closed_before_servers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(http1, "KEEP_ALIVE_S", 0.05)
        server = Server([[OK, OK]])
        async with pool(server) as connections:
            await ask(connections)
            async with asyncio.timeout(5):
                await server.left.wait()

    run(test)


def test_nobody_there_is_unreachable() -> None:
    async def test() -> None:
        with pytest.raises(http1.Unreachable):
            await ask(http1.Pool(URL("http://127.0.0.1:9"), connect_timeout_s=2.0, timeout_s=2.0))

    run(test)


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\ny", "a\ry", "a\0"])
def test_no_header_brings_another_one_in(value: str) -> None:
    with pytest.raises(InvalidRequest):
        header_lines({"x-title": value})
