"""Anthropic's messages."""

from __future__ import annotations

from functools import partial

from reef.errors import ReefError
from reef.experience import dialects, jsontext
from reef.gateway import sse
from reef.gateway.dialects.dialect import COMMON_HEADERS, Dialect, reported
from reef.types import JSON

_GROWING = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""Kinds of deltas whose text is one more piece, with the key it stands under."""


class Assembly:
    """Puts the events of a stream together to the message it would have been unstreamed."""

    def __init__(self) -> None:
        self.error: JSON = None
        self._message: dict[str, JSON] | None = None
        self._blocks: dict[int, _Block] = {}
        self._stopped = False

    def add(self, event: JSON) -> None:
        """Take one event; ``ping`` and what is not known say nothing about the message."""
        if not isinstance(event, dict):
            return
        kind = event.get("type")
        if kind == "content_block_delta":
            index, delta = event.get("index"), event.get("delta")
            if type(index) is int and index in self._blocks and isinstance(delta, dict):
                self._blocks[index].add(delta)
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict) and type(event.get("index")) is int:
            self._blocks[event["index"]] = _Block(event["content_block"])
        elif kind == "message_start" and isinstance(event.get("message"), dict):
            self._message = dict(event["message"])
        elif kind == "message_delta":
            self._change(event)
        elif kind == "message_stop":
            self._stopped = True
        elif kind == "error":
            self.error = event.get("error", event)

    def finished(self, *, choices: int = 1) -> bool:
        """Whether the message said why it ended, and the stream that it did."""
        return self._stopped and self._message is not None and bool(self._message.get("stop_reason"))

    def completion(self) -> dict[str, JSON] | None:
        """The message so far; None if nothing came."""
        if self._message is None:
            return None
        if not self._blocks:
            return self._message
        return {**self._message, "content": [self._blocks[index].value() for index in sorted(self._blocks)]}

    def _change(self, event: dict[str, JSON]) -> None:
        if self._message is None:
            return
        self._message.update({name: value for name, value in event.items() if name not in ("type", "delta", "usage")})
        if isinstance(event.get("delta"), dict):
            self._message.update(event["delta"])
        if isinstance(event.get("usage"), dict):  # counts so far, not increments
            counted = {name: count for name, count in event["usage"].items() if count is not None}
            self._message["usage"] = {**(self._message.get("usage") or {}), **counted}


class _Block:
    """A content block that grows."""

    def __init__(self, start: dict[str, JSON]) -> None:
        self._start = start
        self._pieces: dict[str, list[str]] = {}

    def add(self, delta: dict[str, JSON]) -> None:
        kind = delta.get("type")
        key = _GROWING.get(kind) if isinstance(kind, str) else None
        if key is not None:
            if isinstance(piece := delta.get(key), str):
                self._pieces.setdefault(key, []).append(piece)
        elif kind == "citations_delta":
            self._start["citations"] = [*(self._start.get("citations") or ()), delta.get("citation")]
        else:  # signature_delta, and what is not known yet: the last value stands
            self._start.update({name: value for name, value in delta.items() if name != "type"})

    def value(self) -> JSON:
        """The block so far. The input of a tool that was cut off is the text that came."""
        whole = dict(self._start)
        for key, pieces in self._pieces.items():
            text = "".join(pieces)
            if key != "partial_json":
                whole[key] = (whole.get(key) or "") + text
            elif text:
                try:
                    whole["input"] = jsontext.loads(text)
                except ValueError:
                    whole["input"] = text
        return whole


def error_body(error: ReefError) -> JSON:
    """An error in Anthropic's form, with the hint that all of ours have."""
    return {"type": "error", **error.body()}


def _error_event(error: ReefError) -> bytes:
    return b"event: error\n" + sse.event(jsontext.dumps(error_body(error)))


MESSAGES = Dialect(
    name=dialects.MESSAGES.name,
    path="/v1/messages",
    tap=partial(sse.EventTap, Assembly, ends=frozenset({"message_stop"})),
    fault=reported,
    error_body=error_body,
    error_event=_error_event,
    headers=(*COMMON_HEADERS, b"anthropic-version", b"anthropic-beta"),
    passes_query=True,  # ?beta=true
)
COUNT_TOKENS = MESSAGES.path + "/count_tokens"
