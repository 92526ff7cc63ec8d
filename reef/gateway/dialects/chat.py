"""OpenAI's chat completions."""

from __future__ import annotations

from reef.errors import ReefError
from reef.experience import dialects, jsontext
from reef.gateway import sse
from reef.gateway.dialects.dialect import COMMON_HEADERS, Dialect, reported


def _error_event(error: ReefError) -> bytes:
    return sse.event(jsontext.dumps(error.body()))


CHAT = Dialect(
    name=dialects.CHAT.name,
    path="/v1/chat/completions",
    tap=sse.Tap,
    fault=reported,
    error_body=ReefError.body,
    error_event=_error_event,
    headers=(*COMMON_HEADERS, b"openai-beta"),
)
