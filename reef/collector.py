"""How the processes of a service treat Python's garbage collector. Imports nothing of ours."""

from __future__ import annotations

import gc


def spare() -> None:
    """Leave what is loaded by now out of garbage collection: looking through all of it again and again took a third of a gateway's time."""
    gc.collect()
    gc.freeze()
    gc.collect()  # a full one waits for a quarter of what the last one found: that must not be what is frozen now
