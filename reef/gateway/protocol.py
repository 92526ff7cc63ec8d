"""uvicorn's HTTP protocol, with bounds on what a client may leave unfinished; and an answer's head leaves together with what follows it.

uvicorn takes a head of any size, for as long as it likes to come, and all that before anybody asked for a token: 170 MB of headers took
2 GB. And it writes head and body of an answer one after the other, where each write is a system call that wakes the client: a tenth of what
the gateway does for a small answer.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from reef.errors import HeadTooLarge
from reef.experience import jsontext

MAX_HEAD_BYTES = 64 * 1024
"""So much may come that is neither a whole head nor of a body, beside what one read brings."""


class Protocol(HttpToolsProtocol):
    """One connection of a client.

    More than :data:`MAX_HEAD_BYTES` of a head are answered with 431, more of trailers end the connection. So does a head that is not whole,
    or a body of which nothing more came, from one look to the next; the looks are as far apart as a connection may be idle.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _HeadWaits(transport, self.loop)  # type: ignore[assignment]
        self._in_head = True
        self._heads = 0
        self._bytes = 0
        self._unfinished_bytes = 0
        """Read since a head was whole, or something of a body came. The parser keeps a header of any length until all of it is there."""
        self._seen = self._progress
        self._alarm = self.loop.call_later(self.timeout_keep_alive, self._look)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self._unfinished_bytes > MAX_HEAD_BYTES:
            self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        self._alarm.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._heads += 1
        self._unfinished_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished_bytes = 0
        super().on_body(body)

    @property
    def _progress(self) -> tuple[bool, int]:
        """Differs from what it was before when the client has gone on with what it owes; a head must come as a whole."""
        return self._in_head, self._heads if self._in_head else self._bytes

    @property
    def _owed(self) -> bool:
        """Whether it is the client's turn: the rest of a head, or of a body that is being read."""
        cycle = self.cycle
        return self._in_head or (cycle is not None and cycle.more_body and not cycle.response_complete and not self.flow.read_paused)

    def _look(self) -> None:
        seen, self._seen = self._seen, self._progress
        if self._owed and seen == self._seen:
            self.transport.close()
        else:
            self._alarm = self.loop.call_later(self.timeout_keep_alive, self._look)

    def _refuse(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # what is under way is this request's, or one's before it
            self.transport.close()
            return
        error = HeadTooLarge(
            f"the head of the request is larger than {MAX_HEAD_BYTES >> 10} KiB", hint="Send what is long in the body, as JSON."
        )
        body = jsontext.dumps(error.body())
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head)
        self.transport.write(body)
        self.transport.close()


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
