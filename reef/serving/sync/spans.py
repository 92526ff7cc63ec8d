"""Which weights made which tokens of an answer: told within the answer, to whoever asks with the header :data:`ASK`.

vLLM notes with every step of its engine which weight version made it, so it knows for each token. But it gives that in none of the answers
that agents read, and whoever stands outside cannot tell: tokens may wait in a queue over a swap, or be sent as one piece with later ones.
So the engine's output is looked at on its way to vLLM's handlers, and what it says is written into the answer as they made it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any

ASK = "x-reef-weights"
"""The header of a request whose answer is to say so; any value."""
KEY = "reef_weights"
"""In the answer, or in the last chunk of a stream that has a choice: ``[[0, "default.4"], [17, "default.5"]]`` where the token with index
17 is the first that the second made. By the names that the engine answers by."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_ASK = ASK.encode()
_EVENT_END = b"}\n\n"
_asking: ContextVar[_Telling | None] = ContextVar("reef_asking", default=None)


class Spans:
    """Between a server and who asks it; one for each server."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._watched: Any = None

    @staticmethod
    def asked(scope: Message) -> bool:
        """Whether a request wants to be told."""
        return any(name == _ASK for name, _ in scope.get("headers", ()))

    async def pass_on(self, scope: Message, receive: Receive, send: Send, *, name: Callable[[str], str]) -> None:
        """Have a request answered, and its answer say what made it.

        Args:
            name: what the engine answers by when it serves a weight version.
        """
        client = scope["app"].state.engine_client
        if client is not self._watched:
            client.generate = _watched(client.generate)
            self._watched = client
        telling = _Telling(send, name=name)
        token = _asking.set(telling)  # tasks that the handlers start have it, too
        try:
            await self._app(scope, receive, telling.send)
        finally:
            _asking.reset(token)


class _Telling:
    """One answer on its way."""

    def __init__(self, send: Send, *, name: Callable[[str], str]) -> None:
        self._send = send
        self._name = name
        self._head: Message | None = None
        self._spans: Sequence[Any] | None = None
        """What made it, once it is known and until it is told."""

    async def look(self, outputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """What the engine gives, as it is."""
        async with contextlib.aclosing(outputs) as given:  # type: ignore[type-var]
            async for output in given:
                if output.finished and output.outputs:
                    self._spans = output.outputs[0].weight_versions
                yield output

    async def send(self, message: Message) -> None:
        """Pass a message on. The head of an answer that is sent as a whole waits for it: it says how long it is."""
        if message["type"] == "http.response.start":
            if any(name == b"content-length" for name, _ in message["headers"]):
                self._head = message
                return
        elif message["type"] == "http.response.body" and self._spans:
            message = self._told(message)
        if self._head is not None:
            head, self._head = self._head, None
            await self._send(head)
        await self._send(message)

    def _told(self, message: Message) -> Message:
        body: bytes = message.get("body", b"")
        if self._head is not None:
            if message.get("more_body") or not body.endswith(b"}"):
                return message
            body = body[:-1] + self._words() + b"}"
            kept = [header for header in self._head["headers"] if header[0] != b"content-length"]
            self._head = {**self._head, "headers": [*kept, (b"content-length", b"%d" % len(body))]}
        elif body.startswith(b"data: {") and body.endswith(_EVENT_END):
            body = body[: -len(_EVENT_END)] + self._words() + _EVENT_END
        else:
            return message
        self._spans = None
        return {**message, "body": body}

    def _words(self) -> bytes:
        told = [[span.start, self._name(span.version)] for span in self._spans or ()]
        return f',"{KEY}":{json.dumps(told, separators=(",", ":"))}'.encode()


def _watched(generate: Callable[..., Any]) -> Callable[..., Any]:
    """``generate`` of the engine's client, looked at for who asked. A LoRA's answer has its name; the version is of what is below it."""

    def looked_at(*args: Any, lora_request: Any = None, **more: Any) -> Any:
        outputs = generate(*args, lora_request=lora_request, **more)
        telling = _asking.get()
        return outputs if telling is None or lora_request is not None else telling.look(outputs)

    return looked_at
