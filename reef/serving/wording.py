"""How LiteLLM's objects are written in the dialects: whole answers, refusals, and streams event by event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import orjson

from reef.errors import UpstreamError
from reef.types import JSON

CHAT, RESPONSES, MESSAGES = "/chat/completions", "/responses", "/messages"
_DONE = b"data: [DONE]\n\n"


class Words(Protocol):
    """Writes the events of one stream."""

    def write(self, event: Any, *, where: str) -> bytes:
        """One event of LiteLLM's as server-sent events.

        Raises:
            UpstreamError: it tells that the upstream broke.
        """

    def end(self, *, where: str) -> bytes:
        """What comes after the last.

        Raises:
            UpstreamError: the answer was not at its end.
        """


class ChatWords:
    """``chat.completion.chunk`` after chunk, then ``[DONE]``."""

    def __init__(self) -> None:
        self._finished = False

    def write(self, event: Any, *, where: str) -> bytes:
        chunk = _plain(event)
        for choice in chunk.get("choices", ()):
            self._finished = self._finished or bool(choice.setdefault("finish_reason", None))
            _drop_extras(choice.get("delta"))
        return _data(chunk)

    def end(self, *, where: str) -> bytes:
        if not self._finished:
            raise _cut_off(where)
        return _DONE


class ResponsesWords:
    """Events with names and a number each; the last of them carries the whole response."""

    def __init__(self) -> None:
        self._number = 0
        self._finished = False

    def write(self, event: Any, *, where: str) -> bytes:
        data = _plain(event)
        name = data.get("type", "")
        if name == "error":
            raise UpstreamError(f"{where} broke off in mid-answer ({_message(data)})", hint="Send the request again.")
        self._finished = self._finished or name in ("response.completed", "response.incomplete", "response.failed")
        data["sequence_number"] = self._number
        self._number += 1
        return b"event: " + name.encode() + b"\n" + _data(data)

    def end(self, *, where: str) -> bytes:
        if not self._finished:
            raise _cut_off(where)
        return b""


class MessagesWords:
    """LiteLLM writes these itself; an event that tells of an error is the end of the truth."""

    def __init__(self) -> None:
        self._finished = False

    def write(self, event: Any, *, where: str) -> bytes:
        if not isinstance(event, bytes):
            data = _plain(event)
            event = b"event: " + str(data.get("type", "")).encode() + b"\n" + _data(data)
        if event.startswith(b"event: error"):
            told = _message(_read_data(event))
            raise UpstreamError(f"{where} broke off in mid-answer ({told})", hint="Send the request again.")
        self._finished = self._finished or b"event: message_stop" in event
        return event

    def end(self, *, where: str) -> bytes:
        if not self._finished:
            raise _cut_off(where)
        return b""


STREAMED: dict[str, Callable[[], Words]] = {CHAT: ChatWords, RESPONSES: ResponsesWords, MESSAGES: MessagesWords}


def whole(path: str, answer: Any) -> bytes:
    """A whole answer in the dialect of ``path``."""
    data = _plain(answer)
    if path == CHAT:
        for choice in data.get("choices", ()):
            choice.setdefault("finish_reason", None)
            message = choice.get("message")
            if isinstance(message, dict):
                message.setdefault("content", None)
                _drop_extras(message)
            choice.pop("provider_specific_fields", None)
    return orjson.dumps(data, default=str)


def refusal(path: str, error: Exception, message: str) -> JSON:
    """A provider's refusal, in the form of the dialect of ``path``."""
    status = getattr(error, "status_code", 400)
    kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    body: dict[str, JSON] = {"error": {"type": kind.get(status, "invalid_request_error"), "message": message}}
    return {"type": "error", **body} if path == MESSAGES else body


def _plain(value: Any) -> dict[str, Any]:
    """As JSON knows it; what is null is left out, as the providers themselves do."""
    if isinstance(value, dict):
        return dict(value)
    dumped = value.model_dump(mode="json", exclude_none=True)
    return dumped if isinstance(dumped, dict) else {}


def _drop_extras(message: Any) -> None:
    if isinstance(message, dict):
        message.pop("provider_specific_fields", None)


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value, default=str) + b"\n\n"


def _read_data(event: bytes) -> Any:
    _, _, data = event.partition(b"data:")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}


def _message(event: Any) -> str:
    error = event.get("error", event) if isinstance(event, dict) else {}
    return str(error.get("message", "no reason given"))[:1000] if isinstance(error, dict) else "no reason given"


def _cut_off(where: str) -> UpstreamError:
    return UpstreamError(
        f"{where} broke off before the answer ended", hint="Send the request again; what arrived is recorded as truncated."
    )
