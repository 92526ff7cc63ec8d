"""Small pieces of ASGI: read a body, send an answer, send an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from reef.errors import InvalidRequest, ReefError, TooLarge
from reef.experience import jsontext
from reef.types import JSON

if TYPE_CHECKING:
    from reef.gateway.dialects import Dialect

MAX_BODY_BYTES = 64 * 1024 * 1024
RECEIPT_HEADER = b"x-reef-agent-record-id"
OVERHEAD_HEADER = b"x-reef-overhead-ms"
NO_BUFFERING = (b"x-accel-buffering", b"no")
Headers = list[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The client closed the connection before its request was whole."""


async def read_body(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """The whole body of a request.

    Raises:
        TooLarge: it is, or says it is, beyond the bound.
        ClientGone: the client left.
    """
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        if not message.get("more_body", False) and not parts:
            return part if len(part) <= MAX_BODY_BYTES else _refuse_size()
        parts.append(part)
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return b"".join(parts)


def json_object(body: bytes) -> dict[str, JSON]:
    """Parse a request's body.

    Raises:
        InvalidRequest: not JSON, or not an object.
    """
    try:
        parsed = jsontext.loads(body)
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}", hint="Send one JSON object, in UTF-8.") from None
    if not isinstance(parsed, dict):
        raise InvalidRequest(f"the body is a JSON {type(parsed).__name__}, not an object", hint='Send {"model": …, "messages": […]}.')
    return parsed


async def send_whole(send: Send, *, status: int, headers: Headers, body: bytes) -> None:
    """Send an answer that is there as a whole."""
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ReefError, *, dialect: Dialect | None = None, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send an error in the shape every error here has, or in that of the caller's dialect."""
    own = ((name.encode(), value.encode()) for name, value in error.headers().items())
    sent = [(b"content-type", b"application/json"), *headers, *own]
    body = error.body() if dialect is None else dialect.error_body(error)
    await send_whole(send, status=error.status, headers=sent, body=jsontext.dumps(body))


def header_map(scope: Scope) -> dict[bytes, bytes]:
    """A request's headers by lower-case name; of a repeated one the last."""
    return dict(scope["headers"])


def _too_large() -> TooLarge:
    return TooLarge(f"the body is larger than {MAX_BODY_BYTES >> 20} MiB", hint="Shorten the history, or send large files by reference.")


def _refuse_size() -> bytes:
    raise _too_large()
