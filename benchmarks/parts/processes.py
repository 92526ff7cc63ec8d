"""Processes that are measured: started, waited for, looked at through /proc, ended. Where there is no /proc, nothing is seen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOP_S = 30.0
IDLE_SHARE = 0.2
"""A tree that uses less than this share of one core does nothing worth waiting for."""


class NotStarted(Exception):
    """A process ended, or did not get ready in time; its last words are in the message."""


@dataclass(frozen=True)
class Look:
    """One process at one moment."""

    pid: int
    name: str
    rss_bytes: int
    descriptors: int
    threads: int


@contextlib.contextmanager
def running(
    command: list[str], *, log: Path, ready: Callable[[], bool], environment: Mapping[str, str] | None = None, within_s: float = 90.0
) -> Iterator[subprocess.Popen[bytes]]:
    """A server, from the moment it is ready to its end.

    It runs in the folder of its log and not in this checkout: reef-infra's package is called reef, too.

    Raises:
        NotStarted: it is not ready within ``within_s``.
    """
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **(environment or {})}, cwd=log.parent, start_new_session=True
            )
        except OSError as error:
            raise NotStarted(f"{command[0]} cannot be started: {error.strerror}") from None
        try:
            deadline = time.monotonic() + within_s
            while not ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NotStarted(f"{command[0]} did not get ready:\n{log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.05)
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to stop; then leave nothing of it, also nothing that it started."""
    started = tree(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    for pid in started:
        if pid in _parents():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def tree(root: int) -> list[int]:
    """A process and all that it started, and they. Empty where there is no /proc."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in _parents().items():
        children[parent].append(pid)
    found = [root] if (PROC / str(root)).exists() else []
    for pid in found:
        found += children[pid]
    return found


def cpu_s(root: int) -> float:
    """Processor seconds that a tree has used, in user and kernel mode; to 10 ms, which is what the kernel counts in."""
    ticks = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            fields = _stat(pid)
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def look(root: int) -> list[Look]:
    """Every process of a tree; one that ends meanwhile is left out."""
    found = []
    for pid in tree(root):
        with contextlib.suppress(OSError, KeyError, ValueError):
            status = dict(line.split(":", 1) for line in (PROC / str(pid) / "status").read_text().splitlines() if ":" in line)
            descriptors = sum(1 for _ in (PROC / str(pid) / "fd").iterdir())
            rss = int(status["VmRSS"].split()[0]) * 1024
            found.append(Look(pid, _name(pid), rss, descriptors, int(status["Threads"])))
    return found


def wait_until_idle(root: int, *, within_s: float = 20.0) -> None:
    """Wait while a tree still works at requests that nobody waits for any more: they would slow what is measured next."""
    deadline = time.monotonic() + within_s
    before = cpu_s(root)
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = cpu_s(root)
        if now - before <= 0.1 * IDLE_SHARE:
            return
        before = now


def _parents() -> dict[int, int]:
    found = {}
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = _stat(int(folder.name))
            if fields[0] != "Z":
                found[int(folder.name)] = int(fields[1])
    return found


def _stat(pid: int) -> list[str]:
    """What stands in /proc/PID/stat behind the name, which may hold anything: state, parent, …"""
    return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()


def _name(pid: int) -> str:
    """The module that a Python process runs, or the program."""
    words = [word.decode("utf-8", "replace") for word in (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return Path(words[0]).name
