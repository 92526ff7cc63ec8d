"""The gateway as a process of its own: both sockets, and a stop that loses nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef import config as configuration
from reef import process
from reef.experience.database import connect
from reef.experience.store import ExperienceStore
from reef.types import End
from tests.support.gateway import CHAT, until
from tests.support.upstream import FakeUpstream, chunk, greeting, stream, upstream


class Running:
    """One gateway process."""

    def __init__(self, popen: subprocess.Popen[bytes], port: int, state: Path, parent_fd: int) -> None:
        self.popen = popen
        self.port = port
        self.state = state
        self.parent_fd = parent_fd

    def ask(self, body: object = CHAT) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        return connection.getresponse()


@contextlib.contextmanager
def running(state: Path, fake: FakeUpstream, **sections: dict[str, object]) -> Iterator[Running]:
    config = configuration.load(upstream={"url": fake.url}, storage={"dir": str(state)}, **sections)
    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        environment = {
            **os.environ,
            process.CONFIG: config.model_dump_json(),
            process.LISTEN_FD: str(listener.fileno()),
            process.PARENT_FD: str(read),
        }
        popen = subprocess.Popen([sys.executable, "-m", "reef.gateway"], env=environment, pass_fds=(listener.fileno(), read))
    os.close(read)
    service = Running(popen, port, state, write)
    try:
        assert service.ask().status == 200
        yield service
    finally:
        popen.kill()
        popen.wait()
        with contextlib.suppress(OSError):
            os.close(write)


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream() as server:
        yield server


def test_the_unix_socket_serves_too_and_is_for_its_user_alone(tmp_path: Path, fake: FakeUpstream) -> None:
    state = tmp_path / ("deep" * 20) / "state"  # a path longer than a unix socket's address may be
    with running(state, fake):
        path = state / "run" / "gateway.sock"
        assert path.stat().st_mode & 0o777 == 0o600
        folder = os.open(path.parent, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"/proc/self/fd/{folder}/{path.name}")
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        os.close(folder)


def test_a_stop_lets_answers_under_way_finish(tmp_path: Path, fake: FakeUpstream) -> None:
    go = threading.Event()
    pieces = greeting()
    with running(tmp_path / "state", fake) as gateway:
        fake.replies = [stream(*pieces[:2], go, *pieces[2:])]
        answer = gateway.ask({**CHAT, "stream": True})
        gateway.popen.send_signal(signal.SIGTERM)
        until(lambda: refuses(gateway.port))
        go.set()
        assert answer.read() == b"".join(pieces)
        gateway.popen.wait(15)
        store = ExperienceStore(connect(f"sqlite:///{gateway.state / 'reef.db'}"))
        assert [record.end for record in store.records("default")] == [End.COMPLETE, End.COMPLETE]


def test_a_gateway_whose_supervisor_is_gone_ends(tmp_path: Path, fake: FakeUpstream) -> None:
    with running(tmp_path / "state", fake) as gateway:
        os.close(gateway.parent_fd)
        gateway.popen.wait(15)


def test_a_kill_loses_no_answer_that_reached_its_end(tmp_path: Path, fake: FakeUpstream) -> None:
    with running(tmp_path / "state", fake) as gateway:
        receipts = []
        for number in range(20):
            answer = gateway.ask({**CHAT, "stream": bool(number % 2)})
            answer.read()
            receipts.append(answer.getheader("x-reef-agent-record-id"))
        gateway.popen.send_signal(signal.SIGKILL)
        gateway.popen.wait()
        store = ExperienceStore(connect(f"sqlite:///{gateway.state / 'reef.db'}"))
        assert [record.id for record in store.records("default")][1:] == receipts


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return True
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT is of Linux alone")
def test_a_client_that_takes_nothing_is_gone_after_a_while_and_its_upstream_stopped(tmp_path: Path, fake: FakeUpstream) -> None:
    large = chunk({"content": "x" * 2**20})
    with running(tmp_path / "state", fake, listen={"client_timeout_s": 1.0}) as service:
        fake.replies = [stream(*[large] * 64, end="hang")]
        body = json.dumps({**CHAT, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", service.port)) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            assert until(lambda: len(fake.seen) > 1 and fake.seen[1]).hung_up.wait(20)
            store = ExperienceStore(connect(f"sqlite:///{tmp_path / 'state' / 'reef.db'}"))
            records = until(lambda: len(found := store.records("default")) > 1 and found)
        assert (records[-1].end, records[-1].status, records[-1].streamed) == (End.CLIENT_GONE, 200, True)
        assert service.ask().status == 200


def test_a_client_that_is_slow_but_takes_something_stays(tmp_path: Path, fake: FakeUpstream) -> None:
    events = [chunk({"content": "x" * 2**20}) for _ in range(24)]
    with running(tmp_path / "state", fake, listen={"client_timeout_s": 1.0}) as service:
        fake.replies = [stream(*events, chunk({}, finish="stop"), b"data: [DONE]\n\n")]
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
        connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}), {"content-type": "application/json"})
        answer = connection.getresponse()
        begun, size = time.monotonic(), 0
        while piece := answer.read(2**18):
            size += len(piece)
            threading.Event().wait(0.02)  # what makes it slow
        connection.close()
        assert time.monotonic() - begun > 1.5
        assert size > 24 * 2**20
