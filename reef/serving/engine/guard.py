"""Keeps an engine's processes together, and ends them all when whoever watches the engine is gone, however it went.

vLLM's processes do not end with their parent: after a SIGKILL of the server, engine core, worker and resource tracker went on (tried with
0.32). So this one, which needs nothing but the standard library, is put above them: it leads the process group that they all stay in, and
kills that group as soon as the other end of a pipe is closed. It is run by its path, as ``python -I -S guard.py FD COMMAND…``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main(fd: int, command: list[str]) -> int:
    def watch() -> None:
        os.read(fd, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    os.set_inheritable(fd, False)  # only the watcher may hold the pipe open
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    code = server.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
