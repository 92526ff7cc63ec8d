"""A sandboxed agent reaches a gateway on another machine by a bridge, and nothing else."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reef.errors import ConfigError
from reef.harness.bridge import Bridge, listens

if TYPE_CHECKING:
    from tests.harness.conftest import MiniGateway


class OverSocket(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("gateway", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(str(self.path))


@pytest.fixture
def bridge(gateway: MiniGateway) -> Iterator[Bridge]:
    made = Bridge(gateway.url)
    yield made
    made.close()


def test_requests_and_answers_pass_as_they_are(gateway: MiniGateway, bridge: Bridge) -> None:
    gateway.token = "t"
    for _ in range(3):
        connection = OverSocket(bridge.path)
        connection.request("GET", "/reef/harness/head", headers={"authorization": "Bearer t"})
        answer = connection.getresponse()
        assert (answer.status, b'"step": 1' in answer.read()) == (200, True)
        connection.close()
    assert len(gateway.called("/reef/harness/head")) == 3


def test_nobody_else_may_connect_and_nothing_is_left_behind(bridge: Bridge) -> None:
    assert bridge.path.parent.stat().st_mode & 0o077 == 0
    assert listens(bridge.path)
    bridge.close()
    assert not listens(bridge.path)
    assert not bridge.path.parent.exists()


def test_where_no_gateway_answers_the_connection_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    bridge = Bridge(f"http://127.0.0.1:{port}")
    connection = OverSocket(bridge.path)
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.request("GET", "/")
        connection.getresponse()
    connection.close()
    bridge.close()


@pytest.mark.parametrize("url", ["ftp://host", "http://", "host:8900", "http://host/path"])
def test_what_is_no_address_of_a_gateway_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="not the address of a gateway"):
        Bridge(url)
