"""Runs inside a sandbox without a network: listens on 127.0.0.1, forwards to the gateway's unix socket, and runs the command meanwhile.

Started as ``python -I -S relay.py PORT SOCKET COMMAND…``; the standard library only, because nothing of ours is visible in there.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading


def main(port: int, gateway: str, command: list[str]) -> int:
    """Serve until ``command`` ends; its exit code, in the shell's form, is the answer."""
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    threading.Thread(target=_accept, args=(listener, gateway), daemon=True).start()
    returncode = subprocess.call(command)
    return returncode if returncode >= 0 else 128 - returncode


def _accept(listener: socket.socket, gateway: str) -> None:
    while True:
        client, _ = listener.accept()
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(gateway)
        except OSError:  # the gateway is restarting: the client sees its connection closed, and tries again
            client.close()
            upstream.close()
            continue
        for source, sink in ((client, upstream), (upstream, client)):
            threading.Thread(target=pump, args=(source, sink), daemon=True).start()


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until the end, and pass the end on: the other direction may still be busy."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
