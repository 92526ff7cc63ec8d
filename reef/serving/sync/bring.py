"""Full weights brought to an engine by a process of its own: the learner loads no torch, and what is killed here takes nothing with it.

Whatever becomes of that process, the engine goes on with what it served: :func:`settle` ends the pause that it may have died in.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass

from reef import process
from reef.errors import ReefError, WeightSyncError, WeightSyncTimeout
from reef.serving.engine.client import EngineClient
from reef.serving.sync.engines import rpc
from reef.serving.sync.names import ALIAS_S
from reef.serving.sync.swapping import resume

POLL_S = 0.05
START_S = 60.0
"""What loading torch may take on a machine that is busy."""
END_S = 10.0
SETTLE_S = 10.0
_NOT_FOR_IT = (process.CONFIG, process.TRIAL_TOKEN, process.PROPOSER_TOKEN, process.LISTEN_FD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an engine is to serve."""

    url: str
    key_env: str = ""
    way: str = "auto"
    """``serving.vllm.sync``."""
    name: str
    folder: str = ""
    """Of the weights. Empty: those that the engine was started with."""
    base: str = ""
    """The folder that it was started with; needed by the way over the disk alone."""
    stage_s: float = 600.0
    activate_s: float = 60.0
    alias_s: float = ALIAS_S
    """How long the name before stays an alias."""

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Order:
        """What :meth:`text` gave."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Brought:
    """What was done; nothing but the name where the engine served that already."""

    name: str
    pause_s: float = 0.0
    """How long serving stood still."""
    stage_s: float = 0.0
    size_bytes: int = 0
    """Of what had to be sent."""


def bring(order: Order, *, stop: threading.Event) -> Brought:
    """Make an engine serve what is ordered; blocks until it does, proved by every worker, under its own name.

    Raises:
        WeightSyncError: it goes on serving what it did; the message says which rank or engine failed.
        WeightSyncTimeout: one did not answer in time.
    """
    until = time.monotonic() + order.stage_s + 3 * order.activate_s + START_S
    alive_read, alive_write = os.pipe()  # the write end closes with this process, whatever ends it
    try:
        popen = subprocess.Popen(
            [sys.executable, "-m", "reef.serving.sync", order.text()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT} | {process.PARENT_FD: str(alive_read)},
            pass_fds=(alive_read,),
            start_new_session=True,
        )
        try:
            while popen.poll() is None:
                if time.monotonic() > until:
                    raise WeightSyncTimeout(f"bringing {order.name} to {order.url} took longer than it may", hint="See `reef status`.")
                if stop.wait(POLL_S):
                    raise WeightSyncError(f"bringing {order.name} to {order.url} was stopped", hint="The next start does it again.")
            assert popen.stdout is not None
            return _told(popen.stdout.read(), order=order, code=popen.returncode)
        finally:
            popen.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(END_S)
            if popen.stdout is not None:
                popen.stdout.close()
    finally:
        os.close(alive_read)
        os.close(alive_write)


def _told(answer: bytes, *, order: Order, code: int) -> Brought:
    try:
        told = json.loads(answer)
    except ValueError:
        raise WeightSyncError(
            f"the process that brings {order.name} to {order.url} ended with {code}", hint="It is tried again; the learner's log says more."
        ) from None
    if error := told.get("error"):
        raise (WeightSyncTimeout if error["timeout"] else WeightSyncError)(error["message"], hint=error["hint"])
    return Brought(**told["brought"])


def settle(engine: EngineClient) -> None:
    """Have an engine go on after a sync that died in its pause, by the name of what it has by then.

    Raises:
        ReefError: it does not answer.
    """
    if not engine.is_paused():
        return
    with contextlib.suppress(ReefError):  # without our worker nobody knows: the next sync is about to say
        loaded = {str(worker["serving"]) for worker in rpc(engine, "reef_versions", timeout_s=SETTLE_S)}
        if len(loaded) == 1 and loaded != {engine.weight_version()}:
            engine.reset_prefix_cache(running=True)
            engine.update_weight_version(loaded.pop())
    resume([engine], deadline_s=SETTLE_S)
