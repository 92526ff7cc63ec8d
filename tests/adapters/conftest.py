"""The real coding agents, each in an episode of its own, against the rehearsal model on TCP and on a unix socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn

from reef.config import RehearsalConfig
from reef.harness.adapter import Adapter
from reef.harness.episode import EpisodeRunner
from reef.harness.install import install
from reef.harness.sandbox import Sandbox
from reef.harness.tree import starter
from reef.rehearsal.app import create_app
from reef.types import File

Headers = dict[str, str]
Work = Callable[..., tuple[str, str]]


class Served:
    """The rehearsal model, and the headers of what it was asked."""

    def __init__(self) -> None:
        self.app = create_app(RehearsalConfig())
        self.asked: list[tuple[str, Headers]] = []
        self.url = ""
        self.socket = Path()

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.asked.append((scope["path"], headers))
        await self.app(scope, receive, send)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Served]:
    served = Served()
    served.socket = tmp_path / "model.sock"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(served.socket))
        served.url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(served, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [tcp, unix]}, daemon=True)
        thread.start()
        yield served
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def work(model: Served) -> Work:
    """``work(adapter, rule="…", skill="…")``: the date task with that guidance. The answer, and what was written."""

    def run(
        adapter: Adapter, *, prompt: str = "Write the date 7 March 2024 to date.txt", rule: str = "", skill: str = ""
    ) -> tuple[str, str]:
        tree = dict(starter())
        if rule:
            tree["AGENTS.md"] = File(f"# Rules\n\n{rule}\n".encode())
        if skill:
            head = "---\nname: date-conventions\ndescription: Read this before any task that has to do with dates.\n---\n\n"
            tree["skills/date-conventions/SKILL.md"] = File(f"{head}{skill}\n".encode())
        runner = EpisodeRunner(
            adapter=adapter,
            installed=install(adapter),
            sandbox=Sandbox("auto"),
            gateway_socket=model.socket,
            gateway_url=model.url,
            token="trial-token",
            model="m-1",
            timeout_s=60,
        )
        with runner.run(tree, prompt=prompt, files={}, scenario="demo", session="t-1", release=7 if rule else None) as result:
            assert (result.fault, result.returncode) == (None, 0), result.detail
            written = result.workspace / "date.txt"
            return result.answer, written.read_text() if written.exists() else ""

    return run
