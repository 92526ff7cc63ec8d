"""What a dialect has to tell the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reef.errors import ReefError
from reef.gateway.sse import Tap
from reef.types import JSON, End

COMMON_HEADERS = (b"accept", b"idempotency-key", b"http-referer", b"x-title", b"x-request-id", b"traceparent", b"tracestate")
"""What of a caller's headers reaches the upstream in every dialect; never its token, cookies or address."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to ask a model and to be answered."""

    name: str
    """As it is recorded, and as ``upstream.dialects`` calls it."""
    path: str
    """Where agents post to; below the upstream's base URL it is the same without ``/v1``."""
    tap: Callable[[], Tap]
    """Reads along one stream."""
    fault: Callable[[dict[str, JSON]], tuple[End, str] | None]
    """What is wrong with an answer that came as a whole, with status 200; None if nothing is."""
    error_body: Callable[[ReefError], JSON]
    """An error as the body of an answer."""
    error_event: Callable[[ReefError], bytes]
    """An error as the last event of a stream."""
    headers: tuple[bytes, ...] = COMMON_HEADERS
    """Headers of the caller that reach the upstream."""
    passes_query: bool = False
    """Whether what follows ``?`` in the URL reaches the upstream."""

    @property
    def upstream_path(self) -> str:
        """The path below the upstream's base URL."""
        return self.path.removeprefix("/v1")

    def passed(self, headers: Mapping[bytes, bytes]) -> dict[str, str]:
        """What of the caller's headers reaches the upstream."""
        passed = {"Content-Type": "application/json"}
        for name in self.headers:
            if (value := headers.get(name)) is not None:
                passed[name.decode()] = value.decode("latin-1")
        return passed


def reported(answer: dict[str, JSON]) -> tuple[End, str] | None:
    """An error that came with status 200, as some routers send it."""
    return None if answer.get("error") is None else (End.UPSTREAM_ERROR, "the upstream answered with an error")
