"""Processes of an engine whose watcher and guard were both killed: found by their mark, and ended before another engine is started."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from reef.serving.engine.command import MARK

PROC = Path("/proc")


def end(*, mark: str) -> list[int]:
    """Kill what is left of an engine. A process id that was written down would not do: it may be another's by now.

    Args:
        mark: in the environment of all its processes.

    Returns:
        Whom it killed. Nobody where there is no ``/proc``.
    """
    wanted = f"{MARK}={mark}".encode()
    ended = []
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                ended.append(int(folder.name))
    return ended
