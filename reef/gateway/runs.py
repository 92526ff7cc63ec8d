"""Runs of events that each bring a little more of one text: read as one event, which brings all of it.

Nearly all of a streamed ``chat.completion`` is such runs, and their events are the same but for the texts. To put those together as they
are written in JSON takes two thirds of what it takes to parse each event and to add it to the answer; less for longer runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from reef.experience import jsontext

_DELTA = re.compile(rb'"delta": ?\{"(?:content|reasoning_content|reasoning)": ?"')
_MOST_TRIES = 4
"""How many events of one reading are looked at for one that others may be like."""


class Runs:
    """Those of one stream."""

    def __init__(self) -> None:
        self._around: tuple[bytes, bytes] | None = None
        """What events of the run under way have before and after their texts."""

    def joined(self, events: Sequence[bytes]) -> list[bytes]:
        """The data of some events, each run as one of them. What they make of an answer is the same."""
        found: list[bytes] = []
        place = tries = 0
        while place < len(events):
            if self._around is not None and (end := _end(events, place, *self._around)) > place:
                found += _as_one(events[place:end], *self._around)
                place = end
            elif tries < _MOST_TRIES and (around := _around(events[place])) is not None:
                self._around = around
            else:
                found.append(events[place])
                place += 1
                tries += 1
        return found


def _end(events: Sequence[bytes], start: int, before: bytes, after: bytes) -> int:
    """Where a run of events that are alike ends."""
    least = len(before) + len(after)
    for place in range(start, len(events)):
        data = events[place]
        if not (data.startswith(before) and data.endswith(after) and len(data) >= least):
            return place
    return len(events)


def _as_one(run: Sequence[bytes], before: bytes, after: bytes) -> Sequence[bytes]:
    """A run as one event, if there is nothing but text in between."""
    start, stop = len(before), -len(after)
    texts = [data[start:stop] for data in run]
    text = b"".join(texts)
    if (b'"' in text or b"\\" in text) and not all(map(_is_closed, texts)):
        return run
    return (before + text + after,)


def _around(data: bytes) -> tuple[bytes, bytes] | None:
    """What is around the text of an event that brings nothing else."""
    delta = _DELTA.search(data)
    if delta is None:
        return None
    end = data.find(b'"', delta.end())
    before, after = data[: delta.end()], data[end:]
    return (before, after) if end >= 0 and _is_closed(data[delta.end() : end]) and _only_grow(before, after) else None


def _only_grow(before: bytes, after: bytes) -> bool:
    """Whether any text that stands between the two is all that an event's only delta brings: proved with two texts."""
    for text in ("a", "b"):
        try:
            chunk = jsontext.loads(before + text.encode() + after)
        except ValueError:
            return False
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            return False
        delta = choices[0].get("delta")
        if not isinstance(delta, dict) or list(delta.values()) != [text]:
            return False
    return True


def _is_closed(text: bytes) -> bool:
    """Whether a JSON string that goes on with this text does not end in it, and would end right behind it."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b'"' not in text and not text.endswith(b"\\")
