"""A whole `reef serve` as its user starts it: real processes on a free port, with everything in a folder of the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY_S = 20.0


def wait_for(condition: Callable[[], Any], what: str, *, within_s: float = 20.0) -> Any:
    """Poll until ``condition`` gives something true, and return that."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {within_s:g} s in vain for {what}")


@dataclass
class Service:
    """The running service, seen from outside and by its processes."""

    process: subprocess.Popen[bytes]
    state: Path
    url: str = ""

    def get(self, path: str, *, token: str = "") -> Any:
        """GET, and the JSON answered."""
        return self._send(urllib.request.Request(self.url + path), token)

    def post(self, path: str, body: Any, *, token: str = "") -> Any:
        """POST JSON, and the JSON answered."""
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        return self._send(request, token)

    def healthy(self) -> bool:
        """Whether the gateway answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2):
                return True
        except OSError:
            return False

    def pid(self, name: str) -> int | None:
        """The process of that name, as the supervisor wrote it down; None while it is down."""
        return self._written()["processes"][name]["pid"]

    def kill(self, name: str) -> None:
        """SIGKILL one process, and wait until the supervisor has started it anew."""
        before = wait_for(lambda: self.pid(name), f"{name} to run")
        with contextlib.suppress(ProcessLookupError):
            os.kill(before, signal.SIGKILL)
        wait_for(lambda: self.pid(name) not in (None, before), f"{name} to be started again")

    def _written(self) -> Any:
        return json.loads((self.state / "run" / "processes.json").read_text())

    def _send(self, request: urllib.request.Request, token: str) -> Any:
        if token:
            request.add_header("authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Service]:
    """`reef serve` with its state in ``folder/state``; it must have stopped cleanly by the end."""
    state = folder / "state"
    command = [sys.executable, "-m", "reef", "serve", "--port", "0", "--set", f"storage.dir={state}", *arguments]
    log = folder / "serve.log"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**inherited, **(environment or {})})
    service = Service(process, state)

    def ready() -> bool:
        assert process.poll() is None, f"reef serve ended: {log.read_text()}"
        with contextlib.suppress(OSError, ValueError):
            service.url = service._written()["url"]
        return bool(service.url) and service.healthy()

    try:
        wait_for(ready, "reef serve to get ready", within_s=READY_S)
        yield service
    finally:
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert code == 0, f"reef serve ended with {code}: {log.read_text()}"
