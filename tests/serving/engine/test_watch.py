"""An engine that somebody else runs is watched: the note says how it stands, whatever becomes of it, and nothing of it is ever ended."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from reef import config as configuration
from reef.config import Config
from reef.serving.engine import notes
from reef.serving.engine.watch import Watcher
from tests.support.gateway import until


class Health(http.server.BaseHTTPRequestHandler):
    """What a vLLM says of its health."""

    status: ClassVar[int] = 200

    def do_GET(self) -> None:
        self.send_response(type(self).status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Health]]]:
    handler = type("Health", (Health,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_address[1]}", handler
        listening.shutdown()


def attached(folder: Path, url: str) -> Config:
    (folder / "state" / "run").mkdir(parents=True)
    return configuration.load(serving={"vllm": {"attach": url, "name": "theirs"}}, storage={"dir": str(folder / "state")})


def test_the_note_follows_an_engine_that_falls_ill_and_recovers(tmp_path: Path, server: tuple[str, type[Health]]) -> None:
    url, handler = server
    config = attached(tmp_path, url)
    stop = threading.Event()
    watching = threading.Thread(target=Watcher(config, stop=stop).run)
    watching.start()

    def state() -> str:
        note = notes.read(config.state_dir / "run" / notes.FILE)
        return note.state if note else ""

    try:
        until(lambda: state() == "ready")
        handler.status = 503
        until(lambda: state() == "silent")
        handler.status = 200
        until(lambda: state() == "ready")
        found = notes.described(config.state_dir / "run")
        assert found is not None
        assert (found["model"], found["url"], found["pid"]) == ("theirs", url, None)
    finally:
        stop.set()
        watching.join(20)
    assert state() == "stopped"


def test_an_engine_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    config = attached(tmp_path, "http://127.0.0.1:1")
    stop = threading.Event()
    watching = threading.Thread(target=Watcher(config, stop=stop).run)
    watching.start()
    try:
        found = until(lambda: notes.described(config.state_dir / "run"))
        assert found["state"].startswith("silent")
        assert "cannot be reached" in found["detail"]
    finally:
        stop.set()
        watching.join(20)
