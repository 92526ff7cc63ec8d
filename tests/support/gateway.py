"""A gateway as it is served, on a free loopback port, from a thread of the test's process."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn

from reef import config as configuration
from reef.gateway.app import create_app
from reef.gateway.auth import Auth
from reef.gateway.protocol import Protocol
from reef.gateway.state import GatewayState
from reef.types import Record

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Answer:
    """What came back for one request."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.raw = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> dict[str, str]:
        """The error, whose hint must not be empty."""
        error = self.json["error"]
        assert set(error) == {"type", "message", "hint"}
        assert error["message"]
        assert error["hint"]
        return error

    @property
    def receipt(self) -> str:
        return self.headers["x-reef-agent-record-id"]


class Service:
    """What a test needs to reach the gateway and to look behind it."""

    def __init__(self, url: str, state: GatewayState) -> None:
        self.url = url
        self.state = state
        self.store = state.store

    def connect(self) -> http.client.HTTPConnection:
        """A connection of the test's own."""
        return http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=20)

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own."""
        connection = self.connect()
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def chat(self, body: Any = None, *, path: str = "/v1/chat/completions", **headers: str) -> Answer:
        """One chat request; ``x_reef_session="s"`` sends that header."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", path, CHAT if body is None else body, named)

    def record(self, answer: Answer) -> Record:
        """The record of an answer."""
        return self.store.record(answer.receipt)


def until(condition: Callable[[], Any], *, within_s: float = 10.0) -> Any:
    """Poll until ``condition`` gives something true, and return that."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {within_s} s")


@contextlib.contextmanager
def service(folder: Path, *, upstream: str, auth: Auth | None = None, **sections: dict[str, Any]) -> Iterator[Service]:
    """A running gateway with its state in ``folder``."""
    upstream_section = {"url": upstream, **sections.pop("upstream_section", {})}
    config = configuration.load(
        upstream=upstream_section, storage={"dir": str(folder / ".reef"), **sections.pop("storage_section", {})}, **sections
    )
    state = GatewayState.build(config, auth=auth or Auth(token=None))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(create_app(state), loop="uvloop", http=Protocol, lifespan="on", log_level="warning", timeout_graceful_shutdown=5)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        assert server.started
        yield Service(f"http://127.0.0.1:{listener.getsockname()[1]}", state)
    finally:
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive()
