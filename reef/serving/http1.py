"""An HTTP/1.1 client for the one thing the gateway does all day: post a body, and pass on what comes back as it comes.

llhttp reads (httptools, the parser of uvicorn), uvloop sends. Why not aiohttp: it does much more for each request than is needed here (with
recording off the whole gateway is ahead of a bare pass-through over aiohttp, see benchmarks/results/gateway.csv), and it leaves whoever
reads a malformed chunk waiting for ever.
No redirects, cookies, proxies, compression or HTTP/2 here: an answer's bytes go to a client that asked for those bytes.

Sources: RFC 9112 (messages, connections), RFC 9110 section 15.2 (informational answers).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import cast

import httptools
from yarl import URL

KEEP_ALIVE_S = 4.0
"""Below the 5 s after which common servers (uvicorn, Node) drop an idle connection: a request must not meet a closing one."""
MAX_IDLE = 256
MAX_HEAD_BYTES = 128 * 1024
MAX_WAITING_BYTES = 256 * 1024
"""What may have arrived and not been taken; beyond it the connection is not read."""


class Unreachable(Exception):
    """No connection came about."""


class Broken(Exception):
    """The connection ended, or turned to nonsense, before the answer did."""


class Silent(Exception):
    """Nothing came for too long."""


class Pool:
    """Connections to one server.

    Args:
        url: scheme, host and port count.
        connect_timeout_s: bound on connecting, TLS included.
        timeout_s: bound on the silence before and between the pieces of an answer.
    """

    def __init__(self, url: URL, *, connect_timeout_s: float, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._host, self._port = url.host or "", url.port or 80
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def request(self, head: bytes, body: bytes) -> Response:
        """Send a request, once; return when the head of the answer is there.

        Args:
            head: request line and headers, up to and with the blank line.

        Raises:
            Unreachable, Broken, Silent
        """
        connection = self._take() or await self._connect()
        return await connection.ask(head, body)

    def close(self) -> None:
        """Cut all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.abort()

    def give_back(self, connection: _Connection) -> None:
        """Keep a connection for the next request."""
        if len(self._idle) >= MAX_IDLE:
            connection.abort()
            return
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = connection.loop.call_later(KEEP_ALIVE_S, self._drop_old)

    def add(self, connection: _Connection) -> None:
        """A connection was opened."""
        self._open.add(connection)

    def discard(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    def _drop_old(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - KEEP_ALIVE_S
        while self._idle and (self._idle[0].closed or self._idle[0].idle_since <= before):
            self._idle.popleft().abort()
        self._sweep = loop.call_at(self._idle[0].idle_since + KEEP_ALIVE_S, self._drop_old) if self._idle else None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, loop),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError:
            raise Silent("no connection in time") from None
        except (OSError, UnicodeError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        return connection


class Response:
    """One answer. Take what arrived with :meth:`next`, or all of it with :meth:`read`; close it when done."""

    __slots__ = ("_connection", "_ended", "_error", "_loop", "_parts", "_paused", "_size", "_waiter", "_whole", "headers", "status")

    def __init__(self, connection: _Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self._connection = connection
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0
        self._whole = 0
        """Bound on a body that is taken as a whole; 0 while it is taken in pieces."""
        self._paused = False
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def drained(self) -> bool:
        """Whether all of it arrived and was taken."""
        return self._ended and not self._parts

    @property
    def paused(self) -> bool:
        """Whether its reader is too slow for more to be read."""
        return self._paused

    async def head(self) -> None:
        """Wait for status and headers."""
        while not self.status and self._error is None:
            await self._wait()
        if not self.status and self._error is not None:
            raise self._error

    async def next(self) -> bytes:
        """What arrived since; empty at the end.

        Raises:
            Broken, Silent: and no sooner than all that arrived was taken.
        """
        while not self._parts:
            if self._ended:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            self._connection.resume()
        return data

    async def read(self, *, most: int) -> bytes:
        """The whole body; at most ``most`` bytes and a little more, then it stays without an end.

        Raises:
            Broken, Silent
        """
        self._whole = most
        if self._paused:
            self._paused = False
            self._connection.resume()
        while not self._ended and self._size <= most:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def close(self) -> None:
        """Let go: the server is stopped by cutting the connection, unless it is done."""
        if not self._ended:
            self._connection.abort()

    def begin(self, status: int) -> None:
        """The head is there."""
        self.status = status
        self._wake()

    def feed(self, data: bytes) -> None:
        """More of the body is there."""
        self._parts.append(data)
        self._size += len(data)
        if not self._whole:
            if self._size > MAX_WAITING_BYTES and not self._paused:
                self._paused = True
                self._connection.pause()
            self._wake()
        elif self._size > self._whole:
            self._wake()

    def end(self) -> None:
        """All of it is there."""
        self._ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """There will be no more of it."""
        if not self._ended and self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class _Connection(asyncio.Protocol):
    """One connection, which answers one request after the other."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self.closed = False
        self.idle_since = 0.0
        self._pool = pool
        self.loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._response: Response | None = None
        self._heard_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._unfinished_bytes = 0
        """Read since a head was whole, or something of a body came. The parser keeps a header of any length until all of it is there."""
        self._until_closed = False

    async def ask(self, head: bytes, body: bytes) -> Response:
        """Send a request and wait for the head of its answer."""
        response = self._response = Response(self, self.loop)
        self._head_bytes = self._unfinished_bytes = 0
        self._heard_at = self.loop.time()
        if self._alarm is None:  # else that of an earlier request, which looks when this one is due
            self._alarm = self.loop.call_later(self._pool.timeout_s, self._look)
        self._transport.writelines((head, body))
        try:
            await response.head()
        except BaseException:
            self.abort()
            raise
        return response

    def abort(self) -> None:
        """Cut it."""
        self.closed = True
        self._transport.abort()

    def pause(self) -> None:
        """Read no more for now."""
        if not self.closed:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._heard_at = self.loop.time()
        if not self.closed:
            self._transport.resume_reading()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pool.add(self)

    def data_received(self, data: bytes) -> None:
        if self._response is None:  # nobody asked
            self.abort()
            return
        self._heard_at = self.loop.time()
        self._unfinished_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Broken(f"what came is not HTTP/1.1: {error}"))
        if self._unfinished_bytes > MAX_HEAD_BYTES:
            self._fail(Broken(f"more than {MAX_HEAD_BYTES >> 10} KiB came that are neither a whole head nor of a body"))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._pool.discard(self)
        if self._response is not None and self._until_closed and error is None:
            self._response.end()
            self._done()
        else:
            self._fail(Broken(f"the connection was lost: {error}" if error else "the connection was closed"))

    # what the parser calls

    def on_message_begin(self) -> None:
        if self._response is None:  # an answer behind the answer: the next request must not get it
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is None or self._response.status:  # a trailer
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError(f"its head is larger than {MAX_HEAD_BYTES >> 10} KiB")
        self._response.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        response = self._response
        if response is None:
            return
        status = self._parser.get_status_code()
        if status < 200:  # informational: the answer is still to come
            response.headers.clear()
            return
        self._unfinished_bytes = 0
        names = {name for name, _ in response.headers}
        self._until_closed = names.isdisjoint((b"content-length", b"transfer-encoding")) and status not in (204, 304)
        response.begin(status)

    def on_body(self, data: bytes) -> None:
        self._unfinished_bytes = 0
        if self._response is not None:
            self._response.feed(data)

    def on_message_complete(self) -> None:
        response = self._response
        if response is None or not response.status:
            return
        reusable = self._parser.should_keep_alive() and not self._until_closed and not self.closed
        response.end()
        if response.paused:
            self.resume()
        self._done()
        if reusable:
            self._pool.give_back(self)
        else:
            self.abort()

    def _look(self) -> None:
        """Whether it was silent for too long; a slow reader's fault does not count."""
        response, self._alarm = self._response, None
        if response is None:
            return
        left = self._heard_at + self._pool.timeout_s - self.loop.time()
        if response.paused:
            left = self._pool.timeout_s
        if left > 0:
            self._alarm = self.loop.call_later(left, self._look)
        else:
            self._fail(Silent("nothing came in time"))

    def _fail(self, error: Exception) -> None:
        response = self._response
        self._done()
        if response is not None:
            response.fail(error)
        if not self.closed:
            self.abort()

    def _done(self) -> None:
        self._response = None
        self._until_closed = False
