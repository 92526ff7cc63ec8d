"""The gateway process: serves the socket it was handed, and a unix socket for agents in sandboxes without a network."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path

import structlog
import uvicorn

from reef import process
from reef.config import Config
from reef.experience.committer import Keeper, Storing
from reef.gateway.app import create_app
from reef.gateway.state import GatewayState

log = structlog.get_logger()

FINISH_S = 10
"""Bound on finishing answers that are under way when asked to stop."""
BACKLOG = 2048


def main() -> None:
    """Serve until asked to stop, or until the supervisor is gone."""
    process.configure_logging()
    config = process.child_config()
    keeper = Keeper(config.database_url, redact=config.storage.redact)
    if config.storage.record:
        keeper.start()  # it loads while this process does
    server = uvicorn.Server(server_config(config, storing=keeper))
    spare_the_collector()
    process.when_parent_ends(lambda: setattr(server, "should_exit", True))
    listener = process.inherited_socket() or socket.create_server((config.listen.host, config.listen.port), backlog=BACKLOG)
    sockets = [listener]
    first = os.environ.get(process.WORKER, "1") == "1"
    if first and (local := unix_socket(config.state_dir / "run" / "gateway.sock")) is not None:
        sockets.append(local)
    server.run(sockets=sockets)


def spare_the_collector() -> None:
    """Leave what is loaded by now out of garbage collection: looking through all of it again and again took a third of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)


def server_config(config: Config, *, storing: Storing) -> uvicorn.Config:
    """How the app is served: no access log, no headers of the server's own, and a bound on stopping."""
    return uvicorn.Config(
        create_app(GatewayState.build(config, storing=storing)),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=FINISH_S,
    )


def unix_socket(path: Path) -> socket.socket | None:
    """Listen on ``path``, for this user alone. None where the system has no room for a path that long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        found.bind(_short(path))
    except OSError as error:
        found.close()
        log.warning("no unix socket: sandboxed trials cannot reach the gateway", path=str(path), reason=str(error))
        return None
    finally:
        os.umask(before)
    found.listen(BACKLOG)
    return found


def _short(path: Path) -> str:
    """A name of at most 107 bytes for ``path``: a unix socket address holds no more."""
    if len(os.fsencode(path)) < 108 or not Path("/proc/self/fd").is_dir():
        return str(path)
    folder = os.open(path.parent, os.O_PATH)  # stays open: the address is resolved through it
    return f"/proc/self/fd/{folder}/{path.name}"


if __name__ == "__main__":
    main()
