"""uvicorn's HTTP protocol, but an answer's head leaves together with what follows it at once.

uvicorn writes head and body one after the other, and each write is a system call that wakes the client: a tenth of what the gateway does
for a small answer.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Protocol(HttpToolsProtocol):
    """One connection of a client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _HeadWaits(transport, self.loop)  # type: ignore[assignment]


class _HeadWaits:
    """What uvicorn uses of a transport; a head is held back for the rest of this turn of the loop."""

    __slots__ = ("_head", "_loop", "_transport", "get_extra_info", "is_closing", "set_protocol")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.set_protocol = transport.set_protocol

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif data.startswith(b"HTTP/"):  # a part of a body that looks like a head waits as well, and does not mind
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)
