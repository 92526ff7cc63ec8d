"""A small gateway of our own: releases, reports and a scripted model over real HTTP, on TCP and on a unix socket. And the real Pi."""

from __future__ import annotations

import hashlib
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from adapters.pi import PiAdapter
from reef.artifacts.tree import content_id
from reef.harness.adapter import Adapter, Binding
from reef.harness.client import install_script
from reef.harness.install import Installed, install
from reef.harness.tree import starter, text
from reef.types import File, Tree


class MiniGateway:
    """What a client sees of Reef. ``answers`` scripts the model: a text, a tool call as ``("bash", {...})``, or an HTTP status."""

    def __init__(self) -> None:
        self.adapter: Adapter = PiAdapter()
        self.trees: list[Tree] = [starter()]
        self.token = ""
        self.candidate = ""
        """The newest tree is no release: it is this candidate, on canary for whoever asks."""
        self.answers: list[Any] = ["done"]
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.damage: dict[str, Any] = {}
        self.hold = threading.Event()
        self.hold.set()
        self.url = ""

    def release(self, **files: str) -> None:
        """Add a release: the one before with other rules."""
        changed = {path.replace("__", "/").replace("_md", ".md"): File(content.encode()) for path, content in files.items()}
        self.trees.append({**self.trees[-1], **changed})

    def called(self, path: str) -> list[tuple[dict[str, str], Any]]:
        return [(headers, body) for where, headers, body in self.requests if urlsplit(where).path == path]

    def manifest(self, step: int, *, rendered: bool) -> dict[str, Any]:
        tree = self.trees[step - 1]
        files = self.adapter.render(tree, binding=Binding(f"{self.url}/v1", "m")) if rendered else tree
        return {
            **self.head(step),
            "files": {path: text(files, path) for path in files},
            "digests": {path: hashlib.sha256(file.data).hexdigest() for path, file in files.items()},
            "executable": [path for path, file in files.items() if file.executable],
            "adapter": {"name": self.adapter.name, "version": self.adapter.install.version},
            **self.damage,
        }

    def head(self, step: int = 0) -> dict[str, Any]:
        step = step or len(self.trees)
        told = {"step": step, "content_id": content_id(self.trees[step - 1]), "summary": f"summary of {step}"}
        return {**told, "step": step - 1, "candidate": self.candidate} if self.candidate and step == len(self.trees) else told

    def get(self, path: str, query: dict[str, str]) -> tuple[int, str]:
        if path == "/reef/harness/head":
            self.hold.wait(30)
            return 200, json.dumps(self.head())
        if path == "/reef/harness/diff":
            if "candidate" in query:
                return 200, f"+new {query['candidate']}\n"
            return 200, f"-old {query['from']}\n+new {query['to']}\n"
        if path == "/reef/harness/install":
            return 200, install_script(self.adapter, url=self.url, scenario=query.get("scenario", "default"))
        if path == "/reef/harness":
            return 200, json.dumps(self.manifest(int(query.get("version", 0)) or len(self.trees), rendered="adapter" in query))
        return 404, json.dumps({"error": {"message": f"no {path}", "hint": "look elsewhere"}})

    def complete(self) -> tuple[int, list[dict[str, Any]]]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            return answer, [{"error": {"message": "scripted", "type": "scripted"}}]
        delta: dict[str, Any] = {"role": "assistant", "content": answer}
        if isinstance(answer, tuple):
            call = {"index": 0, "id": "c1", "type": "function", "function": {"name": answer[0], "arguments": json.dumps(answer[1])}}
            delta = {"role": "assistant", "content": None, "tool_calls": [call]}
        end = "tool_calls" if isinstance(answer, tuple) else "stop"
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return 200, [
            {**base, "choices": [{"index": 0, "delta": piece, "finish_reason": reason}]} for piece, reason in ((delta, None), ({}, end))
        ]


class Handler(BaseHTTPRequestHandler):
    gateway: MiniGateway

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "local"

    def answer(self, status: int, body: str, kind: str = "application/json") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def note(self) -> bool:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.gateway.requests.append((self.path, headers, json.loads(body) if body else None))
        if self.gateway.token and headers.get("authorization") != f"Bearer {self.gateway.token}":
            self.answer(401, json.dumps({"error": {"message": "no token", "hint": ""}}))
            return False
        return True

    def do_GET(self) -> None:
        if self.note():
            split = urlsplit(self.path)
            self.answer(*self.gateway.get(split.path, {key: values[0] for key, values in parse_qs(split.query).items()}))

    def do_POST(self) -> None:
        if not self.note():
            return
        if self.path.endswith("/chat/completions"):
            status, chunks = self.gateway.complete()
            if status != 200:
                return self.answer(status, json.dumps(chunks[0]))
            return self.answer(200, "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n", "text/event-stream")
        self.answer(200, json.dumps({"agent_record_id": (self.gateway.requests[-1][2] or {}).get("agent_record_id", "r1")}))


def _handler(gateway: MiniGateway) -> type[Handler]:
    return type("BoundHandler", (Handler,), {"gateway": gateway})


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def gateway() -> Iterator[MiniGateway]:
    mini = MiniGateway()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(mini))
    mini.url = f"http://127.0.0.1:{server.server_address[1]}"
    with _serving(server):
        yield mini
        mini.hold.set()


@pytest.fixture
def gateway_socket(gateway: MiniGateway, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "gateway.sock"
    with _serving(_UnixServer(str(path), _handler(gateway))):
        yield path


@pytest.fixture(scope="session")
def pi() -> Installed:
    """The real Pi, from the npm registry the first time and from the cache afterwards."""
    return install(PiAdapter())
