"""The tap on a stream of server-sent events: says what may leave at once, what has to wait, and reads along.

Whole lines leave the moment they are there; a client can do nothing with less, and a line cut off by a dying upstream would spoil the
error event that follows. From the ``data: [DONE]`` line on, everything waits for the record's commit.
"""

from __future__ import annotations

from reef.errors import UpstreamError
from reef.experience import jsontext
from reef.gateway.assembly import Assembly

MAX_LINE_BYTES = 64 * 1024 * 1024


class Tap:
    """Feed it the bytes of one stream, split anywhere."""

    def __init__(self) -> None:
        self.assembly = Assembly()
        self.done = False
        """``[DONE]`` was seen; the stream is at its end."""
        self.held = b""
        """What has not left: an unfinished line, or the end from ``[DONE]`` on."""
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> bytes:
        """Take what arrived; return what may leave now.

        Raises:
            UpstreamError: a single line beyond all measure.
        """
        if self.done:
            self.held += chunk
            return b""
        buffer = self.held + chunk if self.held else chunk
        cut = max(buffer.rfind(b"\n"), buffer.rfind(b"\r")) + 1
        if len(buffer) - cut > MAX_LINE_BYTES:
            raise UpstreamError("the upstream sent a line without end", hint="Is upstream.url an OpenAI-compatible server?")
        lines, self.held = (buffer, b"") if cut == len(buffer) else (buffer[:cut], buffer[cut:])
        kept = self._read(lines)
        if self.done:
            self.held = lines[kept:] + self.held
            return lines[:kept]
        return lines

    def finish(self) -> None:
        """The stream is at its end: an unfinished last line counts."""
        if not self.done and self.held:
            self._read(self.held)
        if not self.done:
            self._dispatch()

    def _read(self, lines: bytes) -> int:
        """Read whole lines up to ``[DONE]``; return how many bytes stand before it."""
        position = 0
        if self._after_cr and lines[:1] == b"\n":  # the second half of a CRLF, not an empty line
            position = 1
        self._after_cr = lines[-1:] == b"\r"
        for line in lines[position:].splitlines(keepends=True):
            content = line.rstrip(b"\r\n")
            if not content:
                self._dispatch()
            elif content.startswith(b"data:"):
                data = content[6:] if content[5:6] == b" " else content[5:]
                if data == b"[DONE]":
                    self._dispatch()
                    self.done = True
                    return position
                self._data.append(data)
            position += len(line)
        return position

    def _dispatch(self) -> None:
        if not self._data:
            return
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        try:
            chunk = jsontext.loads(data)
        except ValueError:  # not for us; the client sees it as it is, and without a finish the answer counts as truncated
            return
        self.assembly.add(chunk)


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"
