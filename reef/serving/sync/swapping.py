"""The moment in which weights change: all engines stand still, change, and go on; or go back together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from reef.errors import ReefError, WeightSyncError
from reef.serving.sync.engines import Deadline, Engine, at_once
from reef.serving.sync.interface import Swap

Step = Callable[[Engine], object]


def swap(engines: Sequence[Engine], *, name: str, previous: Mapping[str, str], load: Step, undo: Step, deadline_s: float) -> Swap:
    """Pause every engine, load, forget what was computed with the old weights, and go on. What is under way is kept.

    Args:
        name: of what is loaded; the engines report it as their weight version from the next token on.
        previous: of what served until now, by engine: one that was restarted serves something else than the others.
        load: loads it into one engine.
        undo: loads what served before into one engine; done on all of them if one fails.

    Raises:
        WeightSyncError: an engine failed, and all serve what they did before; or one could not go back, and the message says so.
    """
    deadline = Deadline(deadline_s)
    paused_at = time.time()
    at_once(engines, lambda engine: _pause(engine, deadline), what="pause", deadline=deadline)
    try:
        try:
            at_once(engines, lambda engine: _change(engine, load, name=name, deadline=deadline), what=f"load {name}", deadline=deadline)
        except WeightSyncError as error:
            back = Deadline(deadline_s)
            try:
                at_once(
                    engines, lambda engine: _change(engine, undo, name=previous[engine.url], deadline=back), what="go back", deadline=back
                )
            except WeightSyncError as second:
                raise WeightSyncError(
                    f"{error.message}; and going back failed too: {second.message}",
                    hint="Restart the engine that is named: it comes back with the head.",
                ) from error
            raise
    finally:
        resume(engines)
    return Swap(name, previous[engines[0].url], paused_at, time.time())


def resume(engines: Sequence[Engine], *, deadline_s: float = 10.0) -> None:
    """Let every engine go on, also those that nobody paused or that a sync which died left paused."""
    deadline = Deadline(deadline_s)
    with contextlib.suppress(WeightSyncError):  # an engine that is gone has nothing to resume, and what made it so is told already
        at_once(engines, lambda engine: engine.ask("POST", "/resume", timeout_s=deadline.left()), what="resume", deadline=deadline)


def _pause(engine: Engine, deadline: Deadline) -> None:
    try:
        engine.ask("POST", "/pause?mode=keep", timeout_s=deadline.left())
    except ReefError:
        resume([engine])
        raise


def _change(engine: Engine, load: Step, *, name: str, deadline: Deadline) -> None:
    load(engine)
    # With the running requests, or nothing is reset while one runs; and the blocks that it fills later, computed half with the old weights,
    # would be found by others. They are computed again from their tokens.
    path = "/reset_prefix_cache?reset_running_requests=true&reset_external=true"
    if engine.ask("POST", path, timeout_s=deadline.left()).get("success") is False:
        raise WeightSyncError(f"{engine.url} did not let go of its prefix cache")
    engine.ask("POST", "/update_weight_version", {"new_version": name}, timeout_s=deadline.left())


def weight_version(engine: Engine, *, timeout_s: float) -> str:
    """What an engine says that it serves."""
    return str(engine.ask("GET", "/weight_info", timeout_s=timeout_s).get("weight_version", ""))
