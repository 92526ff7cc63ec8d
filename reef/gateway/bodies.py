"""A bound on the bodies of all requests but those that bound their own: read up to it, and refused beyond it, before anything is parsed."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reef.errors import TooLarge
from reef.gateway import wire
from reef.gateway.metrics import Metrics

MOST_BYTES = 16 * 1024 * 1024
"""Room for ten thousand references and some megabytes of feedback. What is larger belongs into a record, or in several batches."""
BOUND_THEIR_OWN = frozenset({"/reef/records/batch"})


class Bounded:
    """An ASGI app whose requests have bodies of at most so many bytes. One with a larger body never sees it, and its sender hears 413."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, most: int = MOST_BYTES) -> None:
        self._app = app
        self._metrics = metrics
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in BOUND_THEIR_OWN:
            await self._app(scope, receive, send)
            return
        headers = wire.header_map(scope)
        declared = headers.get(b"content-length", b"")
        if not declared and b"transfer-encoding" not in headers:  # nearly all: there is no body
            await self._app(scope, receive, send)
            return
        try:
            if declared.isdigit() and int(declared[:20]) > self._most:
                raise self._too_large()
            message = await self._read(receive)
        except TooLarge as error:
            self._metrics.refuse(error.type)
            await wire.send_error(send, error)
            return
        if message["type"] == "http.disconnect":
            return
        read = [message]

        async def again() -> Message:
            return read.pop() if read else await receive()

        await self._app(scope, again, send)

    async def _read(self, receive: Receive) -> Message:
        """The whole body as one message; or that the client left."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return message
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most:
                raise self._too_large()
            if not message.get("more_body", False):
                return {"type": "http.request", "body": b"".join(parts), "more_body": False}

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"the body is larger than {self._most >> 20} MiB",
            hint="Quote records by their receipts, or send it in several requests.",
        )
