"""What the engine's watcher writes down: for `reef status`, and for the gateway when a request finds nobody there."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from reef import process
from reef.config import ENGINE
from reef.errors import EngineNotReady

FILE = "engine.json"
JUDGE = "judge"
"""Folder within a state: all of the engine that full weights are judged on, as the other engine's is in the state itself."""
USUAL_START_S = 40.0
"""How long a start takes where none is known: small models took 22 to 51 s on two cores (shared/facts/vllm_cpu.md)."""
MOST_RETRY_S = 30
"""The longest wait that a caller is told; official clients give up at a minute."""

State = Literal["fetching", "starting", "ready", "silent", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Note:
    """The state of the engine."""

    state: State
    since: float
    """Unix seconds: when it came to be so."""
    model: str
    url: str
    detail: str = ""
    """Why, where that needs saying."""
    pid: int | None = None
    """The leader of its process group."""
    start_s: float | None = None
    """How long the last start took."""

    @property
    def told(self) -> str:
        """The state in words."""
        took = time.time() - self.since
        if self.state in ("fetching", "starting", "silent"):
            return f"{self.state}, {took:.0f} s"
        return self.state

    @property
    def retry_after_s(self) -> int:
        """When it is worth asking again."""
        if self.state == "starting":
            left = (self.start_s or USUAL_START_S) - (time.time() - self.since)
            return max(2, min(MOST_RETRY_S, round(left)))
        return MOST_RETRY_S if self.state == "fetching" else 5


def write(folder: Path, note: Note) -> None:
    """Replace the note in the folder ``run`` of a state."""
    process.write_atomically(folder / FILE, json.dumps(asdict(note)))


def read(file: Path) -> Note | None:
    """The note; None where there is none to be read."""
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
        known = {field.name for field in fields(Note)}
        return Note(**{name: value for name, value in written.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


class News:
    """What the person at the terminal is told as the engine comes and goes: that it is ready, or that one of somebody else's is silent."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._seen = (0, 0)
        self._state = ""

    def line(self) -> str:
        """What is new since the last call; empty where nothing is. Cheap enough to be asked many times a second."""
        try:
            about = self._file.stat()
        except OSError:
            return ""
        if (seen := (about.st_mtime_ns, about.st_ino)) == self._seen:
            return ""
        self._seen = seen
        note = read(self._file)
        if note is None or note.state == self._state:
            return ""
        self._state = note.state
        if note.state == "silent":
            return f"the engine at {note.url} gives no sign of life: {note.detail}"
        took = f", {note.start_s:.0f} s after its start" if note.start_s else ""
        return f"the engine is ready{took}: {note.model} answers" if note.state == "ready" else ""


def described(folder: Path) -> dict[str, Any] | None:
    """The note as `/reef/status` gives it."""
    note = read(folder / FILE)
    if note is None:
        return None
    return {"state": note.told, "model": note.model, "url": note.url, "pid": note.pid, "start_s": note.start_s, "detail": note.detail}


def refusal(upstream: str) -> EngineNotReady | None:
    """What a caller is told whose request found nobody there; None where the upstream is no engine of ours."""
    file = os.environ.get(process.ENGINE_NOTE)
    if upstream != ENGINE or not file:
        return None
    note = read(Path(file))
    if note is None:
        return EngineNotReady("the engine has not been started yet", hint="Come again in a moment; `reef status` tells how far it is.")
    word = {
        "fetching": "the engine's model is being fetched",
        "starting": "the engine is starting",
        "failed": f"the engine is down and will be started again ({note.detail})",
        "stopped": "the engine was stopped",
    }.get(note.state, "the engine does not answer")
    elapsed = f", {time.time() - note.since:.0f} s so far" if note.state in ("fetching", "starting") else ""
    return EngineNotReady(
        f"{word}{elapsed}", hint="Come again in a moment; `reef status` tells how far it is.", retry_after_s=note.retry_after_s
    )
