"""The process: ``python -m reef.rehearsal``, started by the supervisor or by hand.

By hand it needs nothing: REEF_PORT picks the port (0, the default, a free one), REEF_CONFIG may hold a configuration, and the first
line printed is the base URL for ``upstream.url``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

import uvicorn
from pydantic import ValidationError

from reef import process
from reef.config import Config
from reef.errors import ConfigError
from reef.rehearsal.app import create_app

PORT = "REEF_PORT"
STOP_S = 3


def main() -> int:
    try:
        app = create_app(_config().rehearsal)
        listener = process.inherited_socket() or _listen()
    except ConfigError as error:
        print(f"reef.rehearsal: {error.message}. {error.hint}", file=sys.stderr)
        return 2
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_S, lifespan="off"))

    def stop() -> None:
        server.should_exit = True

    process.when_parent_ends(stop)
    with contextlib.suppress(KeyboardInterrupt), listener:  # uvicorn raises the signal again once it has stopped
        server.run(sockets=[listener])
    return 0


def _config() -> Config:
    text = os.environ.get(process.CONFIG)
    if not text:
        return Config()
    try:
        return Config.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{process.CONFIG} is not a configuration: {error}", hint="Leave it unset for the defaults.") from None


def _listen() -> socket.socket:
    text = os.environ.get(PORT, "0")
    try:
        listener = socket.create_server(("127.0.0.1", int(text)), backlog=512)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(f"cannot listen on port {text}: {error}", hint=f"Set {PORT} to a free port, or to 0.") from None
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", flush=True)
    return listener


if __name__ == "__main__":
    sys.exit(main())
