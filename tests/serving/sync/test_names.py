"""By which names a server with full weights may be asked, and when: the middleware alone, around a server of the shape of vLLM's."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from reef.serving.sync.names import ServedNames


@dataclass(frozen=True)
class Path:
    name: str
    model_path: str


@dataclass
class Server:
    """Answers as vLLM does: 404 to a name that is not listed, else by the first that is."""

    listed: list[Path] = field(default_factory=lambda: [Path("tiny", "/models/tiny")])
    refuses: str = ""
    """A path that fails."""

    def __post_init__(self) -> None:
        self.state = SimpleNamespace(openai_serving_models=SimpleNamespace(base_model_paths=self.listed))
        self._app = ServedNames(self._answer)

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """One request, its body in two pieces."""
        data = json.dumps(body or {}).encode()
        given = [{"type": "http.request", "body": data[3:]}, {"type": "http.request", "body": data[:3], "more_body": True}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return given.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app({"type": "http", "method": method, "path": path, "app": self}, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    async def answered_by(self, name: str) -> str:
        """Which weights answer a request for a name; empty where none do."""
        status, told = await self.ask("POST", "/v1/completions", {"model": name})
        return told["model"] if status == 200 else ""

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message.get("more_body"):
                break
        named = json.loads(body).get("model")
        status = 500 if scope["path"] == self.refuses else 404 if named and named not in {path.name for path in self.listed} else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps({"model": self.listed[0].name}).encode()})


def test_a_server_that_follows_answers_by_the_name_of_its_weights_and_soon_by_no_other() -> None:
    async def run() -> None:
        server = Server()
        await server.ask("POST", "/reef/served")
        assert await server.answered_by("tiny") == "tiny"
        await server.ask("POST", "/update_weight_version", {"new_version": "default.2"})
        assert (await server.ask("GET", "/reef/served"))[1] == {"name": "default.2", "follows": True}
        assert await server.answered_by("default.2") == "default.2"
        assert await server.answered_by("tiny") == "default.2"  # whoever has not heard of it yet is told who answered
        await server.ask("POST", "/update_weight_version", {"new_version": "default.3"})
        assert [path.name for path in server.listed] == ["default.3", "default.2"]
        assert await server.answered_by("tiny") == ""
        await server.ask("POST", "/update_weight_version", {"new_version": "default"})
        assert await server.answered_by("tiny") == "tiny"
        assert server.listed[0] == Path("tiny", "/models/tiny")

    asyncio.run(run())


def test_a_server_that_was_not_asked_to_follow_keeps_its_name_until_it_is() -> None:
    async def run() -> None:
        server = Server()
        await server.ask("POST", "/update_weight_version", {"new_version": "default.2"})
        assert (await server.ask("GET", "/reef/served"))[1] == {"name": "default.2", "follows": False}
        assert await server.answered_by("tiny") == "tiny"
        await server.ask("POST", "/reef/served")
        assert await server.answered_by("tiny") == "default.2"

    asyncio.run(run())


def test_a_swap_that_fails_changes_no_name() -> None:
    async def run() -> None:
        server = Server(refuses="/update_weight_version")
        await server.ask("POST", "/reef/served")
        assert (await server.ask("POST", "/update_weight_version", {"new_version": "default.2"}))[0] == 500
        assert (await server.ask("GET", "/reef/served"))[1]["name"] == "default"
        assert await server.answered_by("default.2") == ""

    asyncio.run(run())


def test_nothing_begins_between_a_pause_and_its_end() -> None:
    async def run() -> None:
        server = Server()
        await server.ask("POST", "/reef/served")
        await server.ask("POST", "/pause")
        waiting = asyncio.create_task(server.answered_by("tiny"))
        await asyncio.sleep(0)
        await server.ask("POST", "/update_weight_version", {"new_version": "default.2"})
        assert not waiting.done()
        await server.ask("POST", "/resume")
        assert await asyncio.wait_for(waiting, 20) == "default.2"

    asyncio.run(run())


def test_a_pause_that_fails_holds_nobody_up() -> None:
    async def run() -> None:
        server = Server(refuses="/pause")
        assert (await server.ask("POST", "/pause"))[0] == 500
        assert await asyncio.wait_for(server.answered_by("tiny"), 20) == "tiny"

    asyncio.run(run())
