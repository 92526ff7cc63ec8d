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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

READY_S = 20.0


def wait_for(condition: Callable[[], Any], what: str, *, within_s: float = 20.0, every_s: float = 0.01) -> Any:
    """Poll until ``condition`` gives something true, and return that. What takes minutes is better not asked for all the time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(every_s)
    raise AssertionError(f"waited {within_s:g} s in vain for {what}")


@dataclass
class Service:
    """The running service, seen from outside and by its processes."""

    launch: Callable[[], subprocess.Popen[bytes]]
    state: Path
    log: Path
    url: str = ""
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start it, the first time or again, and wait until it serves."""
        self.process = self.launch()
        wait_for(self._ready, "reef serve to get ready", within_s=READY_S)

    def get(self, path: str, *, token: str = "") -> Any:
        """GET, and the JSON answered."""
        return self._send(urllib.request.Request(self.url + path), token)

    def post(self, path: str, body: Any, *, token: str = "", headers: Mapping[str, str] | None = None) -> Any:
        """POST JSON, and the JSON answered."""
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode(), headers=dict(headers or {}))
        request.add_header("content-type", "application/json")
        return self._send(request, token)

    def text(self, path: str) -> str:
        """GET, and the text answered."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

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

    def kill_at_once(self, name: str) -> None:
        """SIGKILL one process as soon as it runs, and wait for nothing more. The keeper is the first gateway's."""

        def running() -> int | None:
            if name == "keeper":
                gateway = self.pid("gateway")
                return next((pid for pid in _children(gateway or 0) if b"reef.experience.keeper" in _command(pid)), None)
            found = self.pid(name)
            return found if found is not None and b"reef." in _command(found) else None  # a dead one has no command any more

        os.kill(wait_for(running, f"{name} to run"), signal.SIGKILL)

    def kill_everything(self) -> None:
        """SIGKILL the supervisor and all that came from it, together: what a power cut leaves of them."""
        found = [self.process.pid]
        for pid in found:
            found += _children(pid)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _ready(self) -> bool:
        assert self.process.poll() is None, f"reef serve ended: {self.log.read_text()}"
        with contextlib.suppress(OSError, ValueError):
            if (written := self._written())["pid"] == self.process.pid:  # of one before it, if it was killed
                self.url = written["url"]
                return self.healthy()
        return False

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

    def launch() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, env={**inherited, **(environment or {})})

    service = Service(launch, state, log)
    try:
        service.start()
        yield service
    finally:
        service.process.send_signal(signal.SIGINT)
        try:
            code = service.process.wait(30)
        except subprocess.TimeoutExpired:
            service.process.kill()
            raise
    assert code == 0, f"reef serve ended with {code}: {log.read_text()}"


def _children(parent: int) -> list[int]:
    """The processes that one started and that still run."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                after_name = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(after_name[1]) == parent:
                    found.append(int(folder.name))
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
