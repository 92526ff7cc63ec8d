"""What every process of one `reef serve` shares: how it learns its configuration, when to end, and how it logs."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO, cast

import structlog

from reef.config import Config
from reef.errors import ConfigError

CONFIG = "REEF_CONFIG"
"""The resolved configuration, as JSON."""
LISTEN_FD = "REEF_LISTEN_FD"
"""An already listening TCP socket, so that a restart neither loses the port nor the connections that wait in its backlog."""
PARENT_FD = "REEF_PARENT_FD"
"""The read end of a pipe that the supervisor never writes to: end of file means it is gone, however it went."""
WORKER = "REEF_WORKER"
"""The number of a gateway among those that share the listening socket; the first listens for sandboxed trials as well."""
GATEWAY_URL = "REEF_GATEWAY_URL"
ENGINE_NOTE = "REEF_ENGINE_NOTE"
"""The file in which the engine's watcher says how it stands."""
TRIAL_TOKEN = "REEF_TRIAL_TOKEN"  # noqa: S105 - the name of a variable
PROPOSER_TOKEN = "REEF_PROPOSER_TOKEN"  # noqa: S105


def child_config() -> Config:
    """The configuration the supervisor handed down.

    Raises:
        ConfigError: this process was not started by a supervisor.
    """
    text = os.environ.get(CONFIG)
    if not text:
        raise ConfigError(f"{CONFIG} is not set", hint="Start the whole with `reef serve`.")
    return Config.model_validate_json(text)


def inherited_socket() -> socket.socket | None:
    """The listening socket the supervisor handed down, or None."""
    fd = os.environ.get(LISTEN_FD)
    return socket.socket(fileno=int(fd)) if fd else None


def when_parent_ends(act: Callable[[], None]) -> None:
    """Call ``act`` from a thread once the supervisor is gone, even if it was killed. Does nothing without a supervisor."""
    fd = os.environ.get(PARENT_FD)
    if not fd:
        return

    def wait() -> None:
        os.read(int(fd), 1)
        act()

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


@contextlib.contextmanager
def staying_put() -> Iterator[int]:
    """Keep this process on the core it runs on, while it loads what counts cores by moving to each in turn: MKL, which torch loads.

    Yields how many cores it has else, for what counts one meanwhile.

    On a core that an engine keeps busy Linux 6.18 (with `sched_autogroup_enabled`) was seen to let a process that came there this way wait
    until the engine was idle, for minutes, and no signal ended it.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield os.cpu_count() or 1
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {_core()} & cores or cores)
    try:
        yield len(cores)
    finally:
        os.sched_setaffinity(0, cores)


def _core() -> int:
    """The core this process runs on (proc_pid_stat(5), field 39)."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[36])


class _Unfailing:
    """Standard error, for logging. On a full disk the log cannot be written either, and that must not fail what was to be logged."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def configure_logging() -> None:
    """Structured lines on standard error, from structlog and the standard library alike."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Unfailing())),
    )


def write_atomically(path: Path, text: str) -> None:
    """Replace a file whole: a reader sees the old or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
