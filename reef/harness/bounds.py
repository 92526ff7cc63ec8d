"""How much memory and how many processes a command may take with all that it starts; looked at a few times a second from outside.

The kernel's own bounds do not fit: those of one process (``RLIMIT_AS``) stop Node, which reserves far more than it uses; those of a user
(``RLIMIT_NPROC``) count what else the user runs; and control groups are root's to give out. Between two looks a command may go beyond a
bound, so the machine should have more than all of them together.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

INTERVAL_S = 0.1
SHARE = 0.02
"""Of one core's time that looking may take: on a machine with many processes there are fewer looks."""
PROCESSES = 2048
_PROC = Path("/proc")
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one command and all that it starts."""

    memory_bytes: int
    processes: int = PROCESSES
    """Threads are counted as well."""


def bounds(*, memory_mb: int | None = None, processes: int = PROCESSES) -> Bounds:
    """Bounds as the configuration says them; without ``memory_mb`` half of what this machine has."""
    return Bounds(machine_memory() // 2 if memory_mb is None else memory_mb << 20, processes)


def machine_memory() -> int:
    """The memory this process may use at most: the machine's, or its container's."""
    found = [_PAGE * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": there is no limit
            found.append(int(Path(path).read_text()))
    return min(found)


class Watch:
    """Looks whether a process and all below it keep to their bounds. Where there is no ``/proc`` (macOS) it sees nothing.

    Args:
        leader: of a session of its own; what it started and lost belongs to it as long as it stays in that session.
    """

    def __init__(self, leader: int, bounds: Bounds) -> None:
        self._leader = leader
        self._bounds = bounds
        self._next = 0.0

    def exceeded(self) -> str:
        """What they took too much of, in words; empty where nothing, or where the last look was just now."""
        began = time.monotonic()
        if began < self._next:
            return ""
        told = self._look()
        ended = time.monotonic()
        self._next = ended + max(INTERVAL_S, (ended - began) / SHARE)
        return told

    def _look(self) -> str:
        family = _family(self._leader)
        threads = sum(process.threads for process in family)
        if threads > self._bounds.processes:
            return f"{threads} processes and threads, and {self._bounds.processes} are allowed"
        if sum(process.resident for process in family) <= self._bounds.memory_bytes:
            return ""
        size = sum(map(_share, family))  # what several of them hold in common was counted for each
        if size <= self._bounds.memory_bytes:
            return ""
        return f"{size >> 20} MiB of memory, and {self._bounds.memory_bytes >> 20} MiB are allowed"


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    threads: int
    resident: int
    """Bytes."""


def _family(leader: int) -> list[_Process]:
    """A process, all below it, and all of its session."""
    below: dict[int, list[_Process]] = {}
    found: dict[int, _Process] = {}
    for process in _processes():
        below.setdefault(process.parent, []).append(process)
        if leader in (process.pid, process.session):
            found[process.pid] = process
    waiting = list(found)
    while waiting:
        for process in below.get(waiting.pop(), ()):
            if process.pid not in found:
                found[process.pid] = process
                waiting.append(process.pid)
    return list(found.values())


def _processes() -> Iterable[_Process]:
    with contextlib.suppress(OSError):
        for folder in _PROC.iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError):  # it has ended
                    # the name of the program, in parentheses, may hold anything; numbers follow
                    told = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                    yield _Process(int(folder.name), int(told[1]), int(told[3]), int(told[17]), int(told[21]) * _PAGE)


def _share(process: _Process) -> int:
    """What a process holds, of pages it shares its part; all of them where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (_PROC / str(process.pid) / "smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) << 10
    return process.resident
