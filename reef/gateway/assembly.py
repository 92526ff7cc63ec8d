"""A streamed answer put together: ``chat.completion.chunk`` after chunk becomes the ``chat.completion`` it would have been unstreamed."""

from __future__ import annotations

from typing import Any

from reef.types import JSON

FIRST_WINS = frozenset({"id", "type", "role", "index", "format"})
"""Keys whose text names something; some servers repeat them with every chunk. Any other text grows by what arrives."""


class Assembly:
    """Takes chunks as they come; gives the completion at any time.

    Keys it does not know are kept: texts grow, lists grow (by ``index`` where their members have one), objects merge, and of anything
    else the last value that is not null stands.
    """

    def __init__(self) -> None:
        self._top: dict[str, JSON] = {}
        self._choices: dict[int, dict[str, JSON]] = {}
        self.error: JSON = None
        """An error the upstream reported inside its stream."""

    def add(self, chunk: JSON) -> None:
        """Take one chunk; what is not an object is passed over."""
        if not isinstance(chunk, dict):
            return
        choices = chunk.pop("choices", None)
        if isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict):
                    self._add_choice(choice)
        if None in chunk.values():
            chunk = {key: value for key, value in chunk.items() if value is not None or key not in self._top}
        self._top.update(chunk)
        if "error" in chunk and chunk["error"] is not None:
            self.error = chunk["error"]

    def finished(self, *, choices: int = 1) -> bool:
        """Whether every choice, and at least as many as were asked for, said why it ended."""
        return len(self._choices) >= choices and all(choice.get("finish_reason") for choice in self._choices.values())

    def completion(self) -> dict[str, JSON] | None:
        """The answer so far; None if nothing came."""
        if not self._top and not self._choices:
            return None
        top: dict[str, JSON] = {}
        for key, value in self._top.items():
            if key != "usage":
                top[key] = "chat.completion" if key == "object" else value
        top["choices"] = [_settled(self._choices[index]) for index in sorted(self._choices)]
        if "usage" in self._top:
            top["usage"] = self._top["usage"]
        return top

    def _add_choice(self, choice: dict[str, JSON]) -> None:
        index = choice.get("index")
        if type(index) is not int:
            index = 0
        kept = self._choices.get(index)
        if kept is None:
            kept = self._choices[index] = {"index": index, "message": {}, "finish_reason": None}
        for key, value in choice.items():
            if key == "delta":
                if isinstance(value, dict):
                    _merge(kept["message"], value)
            elif key == "logprobs":
                if isinstance(value, dict):
                    _merge(kept.setdefault(key, {}), value)
            elif value is not None and key != "index":
                kept[key] = value


def _merge(kept: dict[str, JSON], delta: dict[str, JSON]) -> None:
    for key, value in delta.items():
        old = kept.get(key)
        if value is None:
            kept.setdefault(key, None)
        elif old is None:
            kept[key] = _first(key, value)
        elif isinstance(old, _Pieces) and isinstance(value, str):
            old.add(value, once=key == "name")
        elif isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            _extend(old, value, indexed=key == "tool_calls")
        elif key not in FIRST_WINS:
            kept[key] = _first(key, value)


def _first(key: str, value: JSON) -> Any:
    """A value in the form that later ones are merged into."""
    if isinstance(value, str):
        return value if key in FIRST_WINS else _Pieces(value)
    if isinstance(value, dict):
        fresh: dict[str, JSON] = {}
        _merge(fresh, value)
        return fresh
    if isinstance(value, list):
        members: list[JSON] = []
        _extend(members, value, indexed=key == "tool_calls")
        return members
    return value


def _extend(kept: list[JSON], members: list[JSON], *, indexed: bool) -> None:
    """Merge the members of a list by their ``index``. A tool call without one continues the last, unless it brings a new id."""
    for member in members:
        if not isinstance(member, dict):
            kept.append(member)
            continue
        index = member.get("index")
        found = None
        if index is not None:
            found = next((old for old in kept if isinstance(old, dict) and old.get("index") == index), None)
        elif indexed and kept and member.get("id") in (None, "", kept[-1].get("id")):
            found = kept[-1]
        if found is None:
            found = {}
            kept.append(found)
        _merge(found, member)


class _Pieces:
    """A text that grows: joined once, at the end. Adding to a string would cost its length with every chunk."""

    __slots__ = ("_parts",)

    def __init__(self, first: str) -> None:
        self._parts = [first]

    def add(self, text: str, *, once: bool) -> None:
        """Append; with ``once``, a repetition of the whole is passed over (servers that repeat a function's name)."""
        if not (once and text == str(self)):
            self._parts.append(text)

    def __str__(self) -> str:
        return "".join(self._parts)


def _settled(value: JSON, *, key: str = "") -> Any:
    """The value in plain JSON; the ``index`` that only a stream's tool calls have is gone."""
    if isinstance(value, _Pieces):
        return str(value)
    if isinstance(value, dict):
        return {name: _settled(item, key=name) for name, item in value.items()}
    if isinstance(value, list):
        members = [_settled(item) for item in value]
        if key == "tool_calls":
            for member in members:
                if isinstance(member, dict):
                    member.pop("index", None)
        return members
    return value
