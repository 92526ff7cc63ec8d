"""OpenAI's responses."""

from __future__ import annotations

from functools import partial

from reef.errors import ReefError
from reef.experience import dialects, jsontext
from reef.gateway import sse
from reef.gateway.dialects.dialect import COMMON_HEADERS, Dialect, reported
from reef.types import JSON, End

_FINISHED = frozenset({"response.completed", "response.incomplete"})
_FAILED = "response.failed"
_ENDS = _FINISHED | {_FAILED}
_PLACES = {
    "output_text": ("content", "content_index", "text"),
    "refusal": ("content", "content_index", "refusal"),
    "reasoning_text": ("content", "content_index", "text"),
    "reasoning_summary_text": ("summary", "summary_index", "text"),
    "function_call_arguments": ("", "", "arguments"),
    "custom_tool_call_input": ("", "", "input"),
    "mcp_call_arguments": ("", "", "arguments"),
    "code_interpreter_call_code": ("", "", "code"),
}
"""For ``response.<name>.delta``: the item's list of parts and the key of the part's index ("" is the item itself), and the key of the
text that grows."""


class Assembly:
    """Gives the response that the last event carries; where that never came, what the events before it tell."""

    def __init__(self) -> None:
        self.error: JSON = None
        self._last: dict[str, JSON] | None = None
        self._first: dict[str, JSON] | None = None
        self._finished = False
        self._items: dict[int, dict[str, JSON]] = {}
        self._growing: dict[tuple[int, str, int, str], list[str]] = {}

    def add(self, event: JSON) -> None:
        """Take one event; what is not known says nothing about the response."""
        if not isinstance(event, dict) or not isinstance(kind := event.get("type"), str):
            return
        if kind.endswith(".delta"):
            self._grow(kind[len("response.") : -len(".delta")], event)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._put_item(event)
        elif kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
            self._put_part("content" if "content" in kind else "summary", event)
        elif kind in _ENDS:
            self._end(kind, event)
        elif kind in ("response.created", "response.in_progress") and isinstance(event.get("response"), dict):
            self._first = event["response"]
        elif kind == "error":
            self.error = event.get("error") or event

    def finished(self, *, choices: int = 1) -> bool:
        """Whether the response came to an end of its own."""
        return self._finished

    def completion(self) -> dict[str, JSON] | None:
        """The response so far; None if nothing came."""
        whole = self._last if self._last is not None else self._first
        if whole is None or whole.get("output") or not self._items:  # some servers leave the items out of the last event
            return whole
        return {**whole, "output": [self._item(index) for index in sorted(self._items)]}

    def _end(self, kind: str, event: dict[str, JSON]) -> None:
        response = event.get("response")
        self._last = response if isinstance(response, dict) else {}
        self._finished = kind in _FINISHED
        if kind == _FAILED:
            self.error = self._last.get("error") or event

    def _grow(self, name: str, event: dict[str, JSON]) -> None:
        place, piece = _PLACES.get(name), event.get("delta")
        if place is None or not isinstance(piece, str):
            return
        index, part = event.get("output_index"), event.get(place[1], 0)
        if type(index) is int and type(part) is int:
            self._growing.setdefault((index, place[0], part, place[2]), []).append(piece)

    def _put_item(self, event: dict[str, JSON]) -> None:
        index, item = event.get("output_index", len(self._items)), event.get("item")
        if type(index) is not int or not isinstance(item, dict):
            return
        self._items[index] = item
        if event["type"].endswith(".done"):  # it holds all that grew
            for key in [key for key in self._growing if key[0] == index]:
                del self._growing[key]

    def _put_part(self, name: str, event: dict[str, JSON]) -> None:
        index, part, value = event.get("output_index"), event.get(f"{name}_index"), event.get("part")
        if type(index) is not int or type(part) is not int or not isinstance(value, dict) or index not in self._items:
            return
        item = self._items[index]
        parts = item.get(name)
        if not isinstance(parts, list):
            parts = item[name] = []
        if part == len(parts):
            parts.append(value)

    def _item(self, index: int) -> dict[str, JSON]:
        item = self._items[index]
        for (_, name, part, key), pieces in [grown for grown in self._growing.items() if grown[0][0] == index]:
            text = "".join(pieces)
            if not name:
                item = {**item, key: (item.get(key) or "") + text}
                continue
            parts = item.get(name)
            if isinstance(parts, list) and 0 <= part < len(parts) and isinstance(parts[part], dict):
                grown_part = {**parts[part], key: (parts[part].get(key) or "") + text}
                item = {**item, name: [*parts[:part], grown_part, *parts[part + 1 :]]}
        return item


def _fault(answer: dict[str, JSON]) -> tuple[End, str] | None:
    status = answer.get("status")
    if status in ("queued", "in_progress"):  # background: the answer is fetched elsewhere
        return End.TRUNCATED, f"the upstream handed the answer over while it was {status}"
    if status in ("failed", "cancelled"):
        return End.UPSTREAM_ERROR, f"the upstream's answer is {status}"
    return reported(answer)


def _error_event(error: ReefError) -> bytes:
    """Flat as the reference has it, and with the ``error`` object that OpenAI sends and its SDK raises."""
    body = {"type": "error", "code": error.type, "message": error.message, "param": None, "sequence_number": 0, **error.body()}
    return b"event: error\n" + sse.event(jsontext.dumps(body))


RESPONSES = Dialect(
    name=dialects.RESPONSES.name,
    path="/v1/responses",
    tap=partial(sse.EventTap, Assembly, ends=_ENDS, failures=frozenset({_FAILED})),
    fault=_fault,
    error_body=ReefError.body,
    error_event=_error_event,
    headers=(*COMMON_HEADERS, b"openai-beta"),
)
