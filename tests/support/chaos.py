"""An upstream that misbehaves on the wire: raw asyncio, every byte and its moment in the hands of the test's script."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Wire:
    """One request that came in, and the connection to answer it on."""

    def __init__(self, path: str, raw: bytes, writer: asyncio.StreamWriter) -> None:
        self.path = path
        self.raw = raw
        self.sent_bytes = 0
        """What was written; what the socket did not take yet is waited for, so the caller's side holds all but a buffer of it."""
        self.hung_up = threading.Event()
        """The caller closed the connection."""
        self.left = asyncio.Event()
        """The same, for scripts to wait for."""
        self._writer = writer

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    async def say(self, *pieces: bytes) -> None:
        """Bytes as they are, each piece in a segment of its own as far as the system lets us."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            self.sent_bytes += len(piece)
            await asyncio.sleep(0)

    async def chunks(self, *pieces: bytes) -> None:
        """Pieces of a body, each an HTTP chunk."""
        await self.say(*(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces))

    async def stream(self, *pieces: bytes) -> None:
        """A head, and the beginning of a body."""
        await self.say(HEAD)
        await self.chunks(*pieces)

    async def until_left(self) -> None:
        """Say nothing until the caller hangs up."""
        await asyncio.wait_for(self.left.wait(), 30)

    def reset(self) -> None:
        """A TCP reset; what the other side has not read yet may be lost to it."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.close()

    def gone(self) -> None:
        self.hung_up.set()
        self.left.set()


Script = Callable[[Wire], Awaitable[object]]


class ChaosUpstream:
    """Serves on a free loopback port, from a thread; one request a connection.

    ``script`` is called for each request; when it returns, the connection is closed as it stands.
    """

    def __init__(self) -> None:
        self.script: Script = lambda wire: wire.stream()
        self.wires: list[Wire] = []
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
            wire = Wire(head[0].split(" ")[1], await reader.readexactly(int(headers.get("content-length", 0))), writer)
            self.wires.append(wire)
            watch = asyncio.create_task(reader.read(1))
            watch.add_done_callback(lambda _: wire.gone())
            try:
                await self.script(wire)
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
        writer.close()


@contextlib.contextmanager
def chaos() -> Iterator[ChaosUpstream]:
    """A running one."""
    server = ChaosUpstream()
    server._thread.start()
    try:
        yield server
    finally:
        server._loop.call_soon_threadsafe(server._loop.stop)
        server._thread.join(5)
