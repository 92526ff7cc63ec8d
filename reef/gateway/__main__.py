"""The gateway process: serves the socket it was handed, and a unix socket for agents in sandboxes without a network."""

from __future__ import annotations

import gc
import os
import socket
import sys
from pathlib import Path

import structlog
import uvicorn

from reef import collector, process
from reef.config import Config
from reef.experience.committer import Keeper, Storing
from reef.gateway.app import create_app
from reef.gateway.protocol import Protocol
from reef.gateway.state import GatewayState

log = structlog.get_logger()

FINISH_S = 10
"""Bound on finishing answers that are under way when asked to stop."""
BACKLOG = 2048
COLLECT = (10_000, 10, 5)
"""When the collector looks: at what is new, at what survived one look, at all of it. The last must not be rare: a connection that is cut
leaves a ring behind, and with (10000, 20, 100) those that survived two looks made a gateway grow for as long as benchmarks/soak.py ran."""


def main() -> None:
    """Serve until asked to stop, or until the supervisor is gone."""
    process.configure_logging()
    config = process.child_config()
    keeper = Keeper(config.database_url, redact=config.storage.redact)
    if config.storage.record:
        keeper.start()  # it loads while this process does
    server = uvicorn.Server(server_config(config, storing=keeper))
    collector.spare()
    gc.set_threshold(*COLLECT)
    process.when_parent_ends(lambda: setattr(server, "should_exit", True))
    listener = process.inherited_socket() or socket.create_server((config.listen.host, config.listen.port), backlog=BACKLOG)
    bound_clients(listener, timeout_s=config.listen.client_timeout_s)
    sockets = [listener]
    first = os.environ.get(process.WORKER, "1") == "1"
    if first and (local := unix_socket(config.state_dir / "run" / "gateway.sock")) is not None:
        sockets.append(local)
    server.run(sockets=sockets)


def server_config(config: Config, *, storing: Storing) -> uvicorn.Config:
    """How the app is served: no access log, no headers of the server's own, and a bound on stopping."""
    return uvicorn.Config(
        create_app(GatewayState.build(config, storing=storing)),
        loop="uvloop",
        http=Protocol,
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


def bound_clients(listener: socket.socket, *, timeout_s: float) -> None:
    """Have the system end connections whose client takes nothing for so long: it would hold its upstream for ever.

    TCP_USER_TIMEOUT, which accepted connections inherit, counts from when data waits for an acknowledgement or for room at the client
    (tcp(7)). The kernel looks, so no request pays for it, and what is seen here is a connection that was lost. Linux alone has it.
    """
    if sys.platform == "linux" and listener.family in (socket.AF_INET, socket.AF_INET6):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))


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
