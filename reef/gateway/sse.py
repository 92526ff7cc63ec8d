"""The tap on a stream of server-sent events: says what may leave at once, what has to wait, and reads along.

Whole lines leave the moment they are there; a client can do nothing with less, and a line cut off by a dying upstream would spoil the
error event that follows. From the ``data: [DONE]`` line on, everything waits for the record's commit.
"""

from __future__ import annotations

import contextlib
import re

from reef.errors import UpstreamError
from reef.experience import jsontext
from reef.gateway.assembly import Assembly

MAX_LINE_BYTES = 64 * 1024 * 1024
READ_TOGETHER_BYTES = 16 * 1024
"""What is parsed in one go. Event by event costs three times as much; all at the end would stop everything else for a long answer."""
_DONE = re.compile(rb"(?:^|(?<=[\r\n]))data: ?\[DONE\][\r\n]")


class Tap:
    """Feed it the bytes of one stream, split anywhere."""

    def __init__(self) -> None:
        self.assembly = Assembly()
        self.done = False
        """``[DONE]`` was seen; the stream is at its end."""
        self.held = b""
        """What has not left: an unfinished line, or the end from ``[DONE]`` on."""
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._data: list[bytes] = []
        """The data lines of the event under way."""

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
        if b"[DONE]" in lines and (found := _DONE.search(lines)):
            self.done = True
            lines, self.held = lines[: found.start()], lines[found.start() :] + self.held
        if lines:
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
        for chunk in _parse(events):
            self.assembly.add(chunk)


def _parse(events: list[bytes]) -> list[object]:
    """The values of many events; those that are no JSON are not for us, and the client sees them as they are."""
    with contextlib.suppress(ValueError):
        values = jsontext.loads(b"[" + b",".join(events) + b"]")
        if len(values) == len(events):
            return values
    values = []
    for data in events:
        with contextlib.suppress(ValueError):
            values.append(jsontext.loads(data))
    return values


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"
