"""The process: ``python -m reef.serving.engine``, started by the supervisor."""

from __future__ import annotations

import signal
import sys
import threading

import structlog

from reef import process
from reef.errors import ReefError
from reef.serving.engine.watch import Watcher

log = structlog.get_logger()


def main() -> int:
    process.configure_logging()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    process.when_parent_ends(stop.set)
    try:
        Watcher(process.child_config(), stop=stop).run()
    except ReefError as error:
        log.error("the engine is down", reason=error.message, hint=error.hint)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
