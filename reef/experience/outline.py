"""Where the turns stand in the JSON text of a request, found without parsing it.

An agent sends its whole history with each request, so most of a text is what the last one said, byte for byte. Whoever knows where turns
begin in the last one needs to parse only what comes behind the last of them that both have.

Only for texts that were parsed: what is JSON is not looked into here. What is not plain (a key that is there twice or written with escapes,
turns that are no objects, UTF-16) has no outline; it is for whoever parses all of it.

Source: RFC 8259 (in JSON a quote or a bracket outside strings is nothing but itself).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from reef.experience.rope import Rope

FAR = 4096
"""So many bytes behind the last turn whose place is known are parsed again and again rather than looked into: to parse is faster."""
_BRACKETS = b"{}[]"
_LIST = b"["[0]


@dataclass(slots=True)
class Outline:
    """Where the turns of one text stand."""

    starts: list[int]
    """Of the first turns; not always of all."""
    end: int
    """Of the bracket behind the last turn."""

    def last_in(self, shared: int) -> int:
        """The number of the last turn of known place that begins in the first ``shared`` bytes; -1 if none does."""
        return bisect_right(self.starts, shared) - 1

    def look_further(self, text: Rope, *, turns: int) -> None:
        """Find the places of all turns, if many bytes come behind the last that is known.

        Args:
            text: the text of this outline.
            turns: how many turns it has.
        """
        last = self.starts[-1]
        if self.end - last > FAR and len(self.starts) < turns:
            later = text.behind(last)
            found = _objects(later, 0, self.end - last)
            if len(self.starts) - 1 + len(found) == turns:
                self.starts = [*self.starts[:-1], *(last + start for start in found)]


def outline(text: bytes, key: str, *, turns: int) -> Outline | None:
    """The outline of the turns under ``key``, if they can be told.

    Args:
        text: a JSON text.
        key: of the member that holds the turns.
        turns: how many were found when it was parsed.
    """
    if text[:1] != b"{" or 0 in text[:4]:
        return None
    wanted = b'"%b"' % key.encode()
    place: tuple[int, int] | None = None
    for name, start, end in _members(text):
        if b"\\" in name:
            return None
        if name == wanted:
            if place is not None or not end or text[start] != _LIST:
                return None
            place = start + 1, end
    if place is None:
        return None
    starts = _objects(text, *place)
    return Outline(starts, place[1]) if starts and len(starts) == turns else None


def _members(text: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The keys of an object as they are written, and where the outer brackets of their values stand; 0 and 0 for a value without any."""
    name = b""
    depth = begun = before = 0
    for at, piece in _outside(text, 0, len(text)):
        if depth == 1 and piece.lstrip().startswith(b":"):  # the string before it is a key
            if name:
                yield name, 0, 0
            name = text[before:at]
        for place, opens in _brackets(piece, at):
            depth += opens
            if depth == 2 and opens == 1:
                begun = place
            elif depth == 1 and opens == -1:
                yield name, begun, place
                name = b""
        before = at + len(piece)
    if name:
        yield name, 0, 0


def _objects(text: bytes, start: int, end: int) -> list[int]:
    """Where the objects begin among the values between two places."""
    depth = 0
    starts: list[int] = []
    for at, piece in _outside(text, start, end):
        for place, opens in _brackets(piece, at):
            if depth == 0 and text[place] != _LIST:
                starts.append(place)
            depth += opens
    return starts


def _outside(text: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """What stands before, between and behind the strings, and where."""
    at = start
    inside = False
    for piece in text[start:end].split(b'"'):
        if not inside:
            yield at, piece
            inside = True
        elif not piece.endswith(b"\\") or (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 0:  # else its quote is a part of it
            inside = False
        at += len(piece) + 1


def _brackets(piece: bytes, at: int) -> Iterator[tuple[int, int]]:
    """The places of brackets, and 1 for each that opens, -1 for each that closes."""
    if len(piece) > 1 or piece in _BRACKETS:
        for place, char in enumerate(piece, at):
            if char in _BRACKETS:
                yield place, 1 if char in b"{[" else -1
