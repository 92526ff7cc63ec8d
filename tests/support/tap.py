"""Looks on between a client and a service without touching a byte: what the client really sent."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httptools

PIECE_BYTES = 1 << 16


@dataclass
class Sent:
    """One request as it came over the wire."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""
    whole: bool = False

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Tap:
    """Listens on a free loopback port and on a unix socket, and copies both ways to the service at ``target``."""

    def __init__(self, target: str, *, unix: Path) -> None:
        split = urlsplit(target)
        self._target = (split.hostname or "", split.port or 80)
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._unix = socket.socket(socket.AF_UNIX)
        self._unix.bind(str(unix))
        self._unix.listen(64)
        self.socket = unix
        self.url = f"http://127.0.0.1:{self._tcp.getsockname()[1]}"
        self._connections: list[bytearray] = []

    def start(self) -> None:
        for listener in (self._tcp, self._unix):
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def stop(self) -> None:
        for listener in (self._tcp, self._unix):
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # or the thread would wait in accept() for ever
            listener.close()

    @property
    def requests(self) -> list[Sent]:
        """Every request so far that is whole; those of one connection in their order."""
        return [sent for received in list(self._connections) for sent in _Reader().read(bytes(received)) if sent.whole]

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                service = socket.create_connection(self._target)
                received = bytearray()
                self._connections.append(received)
                threading.Thread(target=_pump, args=(client, service, received), daemon=True).start()
                threading.Thread(target=_pump, args=(service, client, None), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
    """Copy until the end, and pass the end on."""
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE_BYTES):
            if kept is not None:
                kept += data
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class _Reader:
    """Reads the requests of one connection, with httptools' callbacks."""

    def __init__(self) -> None:
        self.found: list[Sent] = []
        self._parser = httptools.HttpRequestParser(self)

    def read(self, received: bytes) -> list[Sent]:
        self._parser.feed_data(received)
        return self.found

    def on_message_begin(self) -> None:
        self.found.append(Sent())

    def on_url(self, url: bytes) -> None:
        self.found[-1].path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.found[-1].headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.found[-1].raw += body

    def on_message_complete(self) -> None:
        self.found[-1].method = self._parser.get_method().decode()
        self.found[-1].whole = True


@contextlib.contextmanager
def tapped(target: str, *, unix: Path) -> Iterator[Tap]:
    """A running tap."""
    tap = Tap(target, unix=unix)
    tap.start()
    try:
        yield tap
    finally:
        tap.stop()
