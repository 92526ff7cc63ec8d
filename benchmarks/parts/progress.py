"""What a long measurement is doing, on the terminal at once: a run that stands still can be told from one that is slow."""

from __future__ import annotations

import time

_STARTED = time.monotonic()


def say(what: str) -> None:
    """One line, with the seconds since the measurement began."""
    print(f"[{time.monotonic() - _STARTED:6.1f} s] {what}", flush=True)
