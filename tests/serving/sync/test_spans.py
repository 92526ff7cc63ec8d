"""What an engine's answers tell of the weights that made them: the middleware alone, around a server of the shape of vLLM's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from reef.serving.sync.names import ServedNames
from reef.serving.sync.spans import ASK, KEY
from tests.serving.sync.test_names import Path


@dataclass(frozen=True)
class Span:
    version: str
    start: int


class Client:
    """Generates three tokens; the last output says which weights made them."""

    def __init__(self, versions: list[Span]) -> None:
        self.versions = versions
        self.closed = 0

    async def generate(self, prompt: str, *, lora_request: Any = None) -> AsyncIterator[Any]:
        try:
            for number in range(3):
                finished = number == 2
                yield SimpleNamespace(finished=finished, outputs=[SimpleNamespace(weight_versions=self.versions if finished else None)])
        finally:
            self.closed += 1


@dataclass
class Server:
    """Answers as vLLM does, by the first name that is listed when a request comes."""

    versions: list[Span]
    lora: str = ""
    """The LoRA that is asked."""
    fails: bool = False
    listed: list[Path] = field(default_factory=lambda: [Path("tiny", "/models/tiny")])

    def __post_init__(self) -> None:
        self.client = Client(self.versions)
        models = SimpleNamespace(base_model_paths=self.listed)
        self.state = SimpleNamespace(openai_serving_models=models, engine_client=self.client)
        self._app = ServedNames(self._answer)

    async def ask(self, *, stream: bool = False, headers: tuple[tuple[bytes, bytes], ...] = ((ASK.encode(), b"1"),)) -> list[Any]:
        """All messages of one answer."""
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": json.dumps({"stream": stream}).encode()}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "app": self, "headers": headers}
        await self._app(scope, receive, send)
        return sent

    async def told(self, *, stream: bool = False) -> Any:
        """What an answer says of the weights; None where it says nothing."""
        sent = await self.ask(stream=stream)
        head, bodies = sent[0], [message["body"] for message in sent[1:]]
        if stream:
            assert bodies[-1] == b"data: [DONE]\n\n"
            found = [json.loads(body[6:]).get(KEY) for body in bodies[:-1]]
            assert len(found) == 3
            assert found[:-1] == [None, None]
            return found[-1]
        assert dict(head["headers"])[b"content-length"] == b"%d" % len(b"".join(bodies))
        return json.loads(b"".join(bodies)).get(KEY)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        wants_stream = json.loads((await receive())["body"])["stream"]
        name = self.lora or self.listed[0].name
        outputs = self.client.generate("hi", lora_request=self.lora or None)
        if self.fails:
            body = b'{"error": {"message": "no"}}'
            await send({"type": "http.response.start", "status": 400, "headers": [(b"content-length", b"%d" % len(body))]})
            await send({"type": "http.response.body", "body": body})
            return
        if wants_stream:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
            async for _ in outputs:
                await send({"type": "http.response.body", "body": f'data: {{"model":"{name}"}}\n\n'.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
            return
        async for _ in outputs:
            pass
        body = json.dumps({"model": name}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


def test_an_answer_tells_which_weights_made_which_tokens_streamed_or_not() -> None:
    async def run() -> None:
        server = Server([Span("default", 0), Span("chat.2", 1)])
        for stream in (True, False):
            assert await server.told(stream=stream) == [[0, "tiny"], [1, "chat.2"]]  # what vLLM calls default answers as tiny
        assert server.client.closed == 2

    asyncio.run(run())


def test_the_engines_own_weights_keep_their_name_after_it_answered_by_another() -> None:
    async def run() -> None:
        server = Server([Span("chat.2", 0), Span("default", 2)])
        server._app._follows = True
        server._app._name = "chat.2"
        server._app._take_name(server.state.openai_serving_models)
        assert server.listed[0].name == "chat.2"
        assert await server.told() == [[0, "chat.2"], [2, "tiny"]]

    asyncio.run(run())


def test_who_does_not_ask_gets_the_answer_as_it_is() -> None:
    async def run() -> None:
        sent = await Server([Span("default", 0)]).ask(stream=True, headers=())
        assert not any(KEY.encode() in message.get("body", b"") for message in sent)

    asyncio.run(run())


def test_a_loras_answer_is_proved_by_its_own_name_and_nothing_is_told() -> None:
    async def run() -> None:
        for stream in (True, False):
            assert await Server([Span("default", 0)], lora="chat.3").told(stream=stream) is None

    asyncio.run(run())


def test_an_error_is_passed_on() -> None:
    async def run() -> None:
        head, body = await Server([Span("default", 0)], fails=True).ask()
        assert (head["status"], body["body"]) == (400, b'{"error": {"message": "no"}}')

    asyncio.run(run())
