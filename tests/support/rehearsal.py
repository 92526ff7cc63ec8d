"""The rehearsal model over real HTTP, in a thread of the test process."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn

from reef.config import RehearsalConfig
from reef.rehearsal.app import create_app


@contextlib.contextmanager
def rehearsing(config: RehearsalConfig | None = None) -> Iterator[str]:
    """Its base URL, with the ``/v1``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(create_app(config or RehearsalConfig()), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join(10)
