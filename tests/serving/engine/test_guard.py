"""No process of an engine outlives the one that watches it, however that one ends. The stand-in for vLLM: processes that only wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.serving.engine import guard, leftovers
from reef.serving.engine.command import MARK
from tests.support.engine import marked
from tests.support.gateway import until

SERVER = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up", flush=True)
time.sleep(600)
"""
WATCHER = """
import os, subprocess, sys
read, write = os.pipe()
guard = subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], str(read), sys.executable, "-c", sys.argv[2]],
                         pass_fds=(read,), start_new_session=True)
os.close(read)
guard.wait()
"""


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHER, guard.__file__, SERVER],
        env={k: v for k, v in os.environ.items() if k != MARK},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    yield process
    process.kill()
    process.wait()


def children(pid: int) -> list[int]:
    """Everything below a process."""
    try:
        found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return found + [below for child in found for below in children(child)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_everything_ends_when_the_watcher_is_killed(watcher: subprocess.Popen[bytes]) -> None:
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == b"up\n"
    below = children(watcher.pid)
    assert len(below) == 3  # guard, server and its child
    watcher.kill()
    until(lambda: not any(alive(pid) for pid in below))


def test_the_server_is_told_to_end_when_the_guard_is(watcher: subprocess.Popen[bytes]) -> None:
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == b"up\n"
    lead, server, below = children(watcher.pid)
    os.kill(lead, signal.SIGTERM)
    until(lambda: not alive(server) and not alive(lead))
    assert os.getpgid(below) == lead  # what is left can be reached by its group, as the watcher does
    os.killpg(lead, signal.SIGKILL)
    until(lambda: not alive(below))


def test_what_was_left_of_an_engine_is_found_by_its_mark_and_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    mine = subprocess.Popen(command, env={**os.environ, MARK: str(tmp_path)}, stdout=subprocess.PIPE)
    others = subprocess.Popen(command, env={**os.environ, MARK: str(tmp_path / "other")}, stdout=subprocess.PIPE)
    try:
        for process in (mine, others):
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
        assert set(marked(tmp_path)) == {mine.pid}
        assert leftovers.end(mark=str(tmp_path)) == [mine.pid]
        assert mine.wait(10) == -signal.SIGKILL
        assert others.poll() is None
    finally:
        for process in (mine, others):
            process.kill()
            process.wait()
