"""A real vLLM with the tiny model, as `reef serve` runs it: by the engine's watcher, with what that is told by the supervisor."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reef import config as configuration
from reef import process
from reef.serving.engine import notes
from reef.serving.engine.client import EngineClient
from reef.serving.engine.command import MARK
from reef.serving.models import tiny
from reef.supervisor import _hold_port
from tests.support.gateway import until

START_S = 280.0
NAME = "tiny"


@dataclass
class Running:
    """An engine that serves."""

    url: str
    """Without ``/v1``."""
    model: Path
    """The folder that it serves, under the name ``tiny``, in float32."""
    client: EngineClient
    run: Path
    """Where its note is."""
    watcher: subprocess.Popen[bytes]
    log: Path

    def processes(self) -> dict[int, str]:
        """Everything that belongs to it, by process id: what each is called."""
        return marked(self.run)


def marked(run: Path) -> dict[int, str]:
    """The processes of the engine of a state folder."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={run}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def require_vllm() -> None:
    """Skip where there is no vLLM."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (make install-model)")


@contextlib.contextmanager
def engine(folder: Path, *, start_s: float = START_S, **settings: Any) -> Iterator[Running]:
    """An engine with its state in ``folder``; ``settings`` are of ``serving.vllm``."""
    require_vllm()
    model = tiny(folder / NAME)
    state = folder / "state"
    (state / "run").mkdir(parents=True)
    log = folder / "engine.log"
    with _hold_port("127.0.0.1", 0) as held, log.open("wb") as output:
        vllm = {"model": str(model), "port": held.getsockname()[1], "dtype": "float32", "max_model_len": 1024, **settings}
        config = configuration.load(serving={"vllm": vllm}, storage={"dir": str(state)})
        watcher = subprocess.Popen(
            [sys.executable, "-m", "reef.serving.engine"],
            env={**os.environ, process.CONFIG: config.model_dump_json(), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            until(lambda: watcher.poll() is not None or _state(state / "run") == "ready", within_s=start_s)
            assert watcher.poll() is None, log.read_text()[-3000:]
            url = config.serving.vllm.url
            yield Running(url, model, EngineClient(url, timeout_s=60), state / "run", watcher, log)
        finally:
            watcher.send_signal(signal.SIGTERM)
            watcher.wait(30)


def _state(run: Path) -> str:
    note = notes.read(run / notes.FILE)
    return note.state if note else ""
