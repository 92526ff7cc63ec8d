"""A vLLM server for a measurement or a test: started, waited for, and ended with all of its processes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from reef.config import VLLMConfig
from reef.errors import ReefError
from reef.serving.engine import guard
from reef.serving.engine.client import EngineClient
from reef.serving.engine.command import command

START_S = 600.0
TOLD_CHARS = 3000


@contextlib.contextmanager
def server(
    config: VLLMConfig, *, log: Path, on: Literal["cpu", "cuda"] = "cpu", environment: Mapping[str, str] | None = None
) -> Iterator[tuple[EngineClient, int]]:
    """The client of a server that runs, and the process above all of its processes; the port of the configuration is not heeded."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        config = config.model_copy(update={"port": probe.getsockname()[1]})
    run = command(config, model=config.model, on=on)
    reading, writing = os.pipe()
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(reading), *run.arguments],
            env={**os.environ, **run.environment, "OMP_NUM_THREADS": "1", **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[reading],
            start_new_session=True,
        )
    os.close(reading)
    try:
        client = EngineClient(config.url)
        until = time.monotonic() + START_S
        while not _healthy(client):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"vLLM did not start: {log.read_text()[-TOLD_CHARS:]}")
            time.sleep(0.2)
        yield client, process.pid
    finally:
        os.close(writing)  # which ends them all
        process.wait(30)


def _healthy(client: EngineClient) -> bool:
    try:
        return client.health()
    except ReefError:
        return False
