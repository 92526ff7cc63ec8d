"""The process that stores records for a gateway: `python -m reef.experience.keeper FD`, see :class:`reef.experience.committer.Keeper`.

It reads batches from a socket, commits each, and answers. When the socket ends, because the gateway stopped or was killed, so does it.
"""

from __future__ import annotations

import signal
import socket
import sys

import orjson

from reef import collector, failpoints
from reef.errors import StorageError
from reef.experience import database, schema  # noqa: F401 - registers its tables
from reef.experience.committer import Committer
from reef.experience.framing import AHEAD, SIZE, frame


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the supervisor; the end of the socket is for us
    stream = socket.socket(fileno=int(sys.argv[1]))
    try:
        hello = orjson.loads(receive(stream)[0])
        committer = Committer(database.connect(hello["url"]), redact=hello["redact"])
        collector.spare()
        while True:
            batch, ahead = receive(stream)
            if ahead:
                committer.read_ahead(batch)
                continue
            failpoints.reach("experience.received")
            try:
                answer: dict[str, object] = {"problems": committer.commit_encoded(batch)}
            except StorageError as error:
                answer = {"failed": error.message}
            stream.sendall(frame(orjson.dumps(answer)))
            failpoints.reach("experience.answered")
    except (EOFError, ConnectionError):
        return


def receive(stream: socket.socket) -> tuple[bytearray, bool]:
    """The next message, and whether it is a request sent ahead.

    Raises:
        EOFError: the other end is closed.
    """
    (size,) = SIZE.unpack(_receive(stream, SIZE.size))
    return _receive(stream, size & ~AHEAD), size & AHEAD != 0


def _receive(stream: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        count = stream.recv_into(view[got:])
        if count == 0:
            raise EOFError
        got += count
    return data


if __name__ == "__main__":
    main()
