"""The tap on a stream of server-sent events: says what may leave at once, what has to wait, and reads along.

Whole lines leave the moment they are there; a client can do nothing with less, and a line cut off by a dying upstream would spoil the
error event that follows. From the ``data: [DONE]`` line on, everything waits for the record's commit. Where events have names
(:class:`EventTap`), whole events leave: the name of one that is cut off would spoil the error event just as well.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from reef.errors import UpstreamError
from reef.experience import jsontext
from reef.gateway.assembly import Assembly
from reef.gateway.runs import Runs
from reef.types import JSON

MAX_LINE_BYTES = 64 * 1024 * 1024
READ_TOGETHER_BYTES = 16 * 1024
"""What is parsed in one go. Event by event costs three times as much; all at the end would stop everything else for a long answer."""
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_BLANK_LINE_BYTES = 4


class Assembler(Protocol):
    """Puts the whole answer together from the events of a stream."""

    error: JSON
    """An error the upstream reported inside its stream."""

    def add(self, chunk: JSON, /) -> None:
        """Take the data of one event, whatever it is."""

    def finished(self, *, choices: int = 1) -> bool:
        """Whether the answer ended as it should; ``choices`` is how many were asked for, where a dialect has them."""

    def completion(self) -> dict[str, JSON] | None:
        """The answer so far; None if nothing came."""


class Tap:
    """Feed it the bytes of one stream, split anywhere."""

    failed = False
    """The end that is held tells of a failure itself."""

    def __init__(self, assembly: Callable[[], Assembler] = Assembly) -> None:
        self.assembly = assembly()
        self.done = False
        """``[DONE]`` was seen; the stream is at its end."""
        self.held = b""
        """What has not left: an unfinished line, or the end from ``[DONE]`` on."""
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._runs = Runs()
        self._data: list[bytes] = []
        """The data lines of the event under way."""
        self._left = b"\n\n"
        """The end of what left: at least four bytes, or all of it."""

    @property
    def between_events(self) -> bool:
        """Whether what left so far ends where an event does, and others may say something."""
        return self._left.endswith((b"\n\n", b"\r\r", b"\r\n\r\n"))

    def feed(self, chunk: bytes) -> bytes:
        """Take what arrived; return what may leave now.

        Raises:
            UpstreamError: a single line beyond all measure.
        """
        if self.done:
            self.held += chunk
            return b""
        buffer = self.held + chunk if self.held else chunk
        if buffer.endswith(b"\n"):  # the usual case
            lines, self.held = buffer, b""
        else:
            cut = max(buffer.rfind(b"\n"), buffer.rfind(b"\r", 0, -1)) + 1  # a last \r may be half of a line's end
            if len(buffer) - cut > MAX_LINE_BYTES:
                raise UpstreamError("the upstream sent a line without end", hint="Is upstream.url an OpenAI-compatible server?")
            lines, self.held = buffer[:cut], buffer[cut:]
        if (start := _find_done(lines)) >= 0:
            self.done = True
            lines, self.held = lines[:start], lines[start:] + self.held
        if lines:
            self._left = lines if len(lines) >= _BLANK_LINE_BYTES else self._left[-_BLANK_LINE_BYTES:] + lines
            self._unread.append(lines)
            self._unread_bytes += len(lines)
            if self._unread_bytes >= READ_TOGETHER_BYTES:
                self.catch_up()
        return lines

    def finish(self) -> None:
        """The stream is at its end: an unfinished last line counts."""
        if not self.done and self.held:
            if self.held.rstrip(b"\r") in (b"data: [DONE]", b"data:[DONE]"):
                self.done = True
            else:
                self._unread.append(self.held)
        self._unread.append(b"\n\n")
        self.catch_up()

    def catch_up(self) -> None:
        """Read what left since the last time."""
        lines = b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        events = []
        for line in lines.splitlines():
            if line.startswith(b"data:"):
                self._data.append(line[5:])
            elif not line and self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
        for chunk in _parse(events, self._runs.joined(events)):
            self.assembly.add(chunk)


class EventTap(Tap):
    """The tap on a stream whose events have names; the last of them is held.

    Args:
        ends: names of events that end a stream. They stand in the ``event`` line, and as ``type`` in the data.
        failures: those of them that tell of a failure.
    """

    def __init__(self, assembly: Callable[[], Assembler], *, ends: frozenset[str], failures: frozenset[str] = frozenset()) -> None:
        super().__init__(assembly)
        self._ends = {name.encode(): name in failures for name in ends}

    @property
    def between_events(self) -> bool:
        """Always: only whole events leave."""
        return True

    def feed(self, chunk: bytes) -> bytes:
        """Take what arrived; return what may leave now.

        Raises:
            UpstreamError: a single event beyond all measure.
        """
        if self.done:
            self.held += chunk
            return b""
        buffer = self.held + chunk if self.held else chunk
        if buffer.endswith(b"\n\n"):  # the usual case
            cut = len(buffer)
        else:
            cut = 0
            for blank in _BLANK_LINE.finditer(buffer, max(len(self.held) - _BLANK_LINE_BYTES, 0)):
                cut = blank.end()
        if len(buffer) - cut > MAX_LINE_BYTES:
            raise UpstreamError("the upstream sent an event without end", hint="Does the server at upstream.url speak this dialect?")
        events, self.held = buffer[:cut], buffer[cut:]
        if (end := self._find_end(events)) is not None:
            self.done = True
            events, self.held = events[:end], events[end:] + self.held
        if events:
            self._unread.append(events)
            self._unread_bytes += len(events)
            if self._unread_bytes >= READ_TOGETHER_BYTES:
                self.catch_up()
        return events

    def finish(self) -> None:
        """The stream is at its end, which counts, too: it may carry the whole answer."""
        if not self.done and self.held:
            self.done = self._find_end(self.held) is not None
        self._unread += (self.held, b"\n\n")
        self.catch_up()

    def _find_end(self, events: bytes) -> int | None:
        """Where in some whole events the one that ends the stream starts."""
        if not any(name in events for name in self._ends):
            return None
        start = 0
        while start < len(events):
            blank = _BLANK_LINE.search(events, start)
            stop = blank.end() if blank else len(events)
            if (name := self._end_named(events[start:stop])) is not None:
                self.failed = self._ends[name]
                return start
            start = stop
        return None

    def _end_named(self, event: bytes) -> bytes | None:
        """The name of an event, if it ends the stream."""
        if not any(name in event for name in self._ends):
            return None
        data = []
        for line in event.splitlines():
            if line.startswith(b"event:") and (name := line[6:].strip()) in self._ends:
                return name
            if line.startswith(b"data:"):
                data.append(line[5:])
        for value in _parse([b"\n".join(data)]):  # some servers leave the event line out
            kind = value.get("type") if isinstance(value, dict) else None
            if isinstance(kind, str) and (name := kind.encode("utf-8", "replace")) in self._ends:
                return name
        return None


def _find_done(lines: bytes) -> int:
    """Where the line ``data: [DONE]`` starts; -1 without one. 1 µs in 2 kB of events, where a regular expression took 49."""
    at = len(lines)
    start = -1
    while (at := lines.rfind(b"[DONE]", 0, at)) >= 0:
        before = lines[max(at - 7, 0) : at]
        for name in (b"data: ", b"data:"):
            begins = at - len(name)
            if before.endswith(name) and lines[begins - 1 : begins] in (b"", b"\n", b"\r") and lines[at + 6 : at + 7] in (b"\n", b"\r"):
                start = begins
    return start


def _parse(events: Sequence[bytes], joined: Sequence[bytes] = ()) -> list[object]:
    """The values of many events; those that are no JSON are not for us, and the client sees them as they are.

    Args:
        events: the data of each.
        joined: the same as fewer events, where there are some; one that is no JSON must not take those down that it was joined with.
    """
    joined = joined or events
    with contextlib.suppress(ValueError):
        values = jsontext.loads(b"[" + b",".join(joined) + b"]")
        if len(values) == len(joined):
            return values
    values = []
    for data in events:
        with contextlib.suppress(ValueError):
            values.append(jsontext.loads(data))
    return values


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"
