"""A small agent that runs in this process: what it does is written in its harness, so tests decide how good each side is."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from reef.evaluation.graders.workspace import lay
from reef.types import File, Setup, Tree

NO_SETUP = Setup()


@dataclass(frozen=True)
class Completed:
    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False


def command_runner(workspace: Path) -> Callable[..., Completed]:
    def run_command(argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        try:
            done = subprocess.run(argv, cwd=workspace, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            return Completed(124, "", "", timed_out=True)
        return Completed(done.returncode, done.stdout, done.stderr)

    return run_command


@dataclass(frozen=True)
class Episode:
    workspace: Path
    answer: str
    fault: Literal["harness", "infrastructure"] | None
    detail: str
    duration_s: float
    run_command: Callable[..., Completed]


@dataclass
class LocalRunner:
    """Answers with ``behave(harness, prompt, call)``: the rules of the harness, the prompt, and how often this session's side was run.

    The answer ``!harness`` or ``!infrastructure`` is such a fault.
    """

    behave: Callable[[str, str, int], str]
    calls: list[tuple[str, str, int | None, str]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def run(
        self,
        tree: Tree,
        *,
        prompt: str,
        files: Mapping[str, str | File],
        scenario: str,
        session: str,
        release: int | None,
        setup: Setup = NO_SETUP,
    ) -> Iterator[Episode]:
        started = time.monotonic()
        rules = tree["AGENTS.md"].data.decode()
        with self.lock:
            number = len(self.calls)
            self.calls.append((rules, session, release, prompt))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            answer = self.behave(rules, prompt, number)
            fault: Literal["harness", "infrastructure"] | None = None
            if answer == "!harness":
                fault = "harness"
            elif answer == "!infrastructure":
                fault = "infrastructure"
            with tempfile.TemporaryDirectory() as folder:
                for path, text in files.items():
                    lay(Path(folder), path, text)
                workspace = Path(folder)
                yield Episode(workspace, answer, fault, answer if fault else "", time.monotonic() - started, command_runner(workspace))
        finally:
            with self.lock:
                self.running -= 1


def harness(rules: str) -> Tree:
    return {"AGENTS.md": File(rules.encode())}
