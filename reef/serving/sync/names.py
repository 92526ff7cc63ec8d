"""What an engine with full weights calls itself: put into vLLM's server by ``--middleware reef.serving.sync.names.ServedNames``.

A LoRA has a name of its own, and an engine that lost it says so. Full weights take the place of those the engine was started with, and by
itself the engine would go on answering by its old name: after a restart with its old weights. So an engine that was asked to *follow*
takes the name of its weights with each swap, answers under that one and refuses its old one: the name in an answer is proof of what made
it, and whoever asks for weights that are not there gets 404.

The name before stays an alias for a moment, because those who ask hear of a swap after it. What is answered by it is called by the new.
Nothing new begins between a pause and its end: it would be called by the name of weights that are about to go. What is under way keeps
the name that it began with, though later tokens are of the new weights: :mod:`reef.serving.sync.spans` tells which.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from reef.serving.sync.spans import Message, Receive, Send, Spans

BASE = "default"
"""What vLLM calls the weights that it was started with."""
MIDDLEWARE = "reef.serving.sync.names.ServedNames"
PATH = "/reef/served"
ALIAS_S = 60.0
"""How long the name before is an alias, unless whoever asks it to follow says otherwise: until a swap is proved and noted, and gateways,
which look for notes every 0.1 s, have seen it. On a machine that is overloaded that takes seconds."""
MAX_BODY_BYTES = 64 * 1024


class ServedNames:
    """ASGI middleware; one for each server process of an engine, which has one."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._spans = Spans(app)
        self._own: list[Any] = []
        """The names it was started with, as vLLM keeps them."""
        self._name = BASE
        self._follows = False
        self._alias_s = ALIAS_S
        self._open = asyncio.Event()
        self._open.set()
        self._alias: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path.startswith("/v1/"):
            if not self._open.is_set() and scope["method"] == "POST":
                await self._open.wait()
            if Spans.asked(scope):
                models = scope["app"].state.openai_serving_models
                await self._spans.pass_on(scope, receive, send, name=lambda version: self._named(version, models))
            else:
                await self._app(scope, receive, send)
        elif path == PATH:
            await self._asked(scope, receive, send)
        elif path == "/update_weight_version":
            await self._renamed(scope, receive, send)
        elif path == "/pause":
            await self._paused(scope, receive, send)
        elif path == "/resume":
            try:
                await self._passed(scope, receive, send)
            finally:
                self._open.set()
        else:
            await self._app(scope, receive, send)

    async def _paused(self, scope: Message, receive: Receive, send: Send) -> None:
        self._open.clear()
        paused = False
        try:
            paused = await self._passed(scope, receive, send) == 200
        finally:
            if not paused:
                self._open.set()

    async def _asked(self, scope: Message, receive: Receive, send: Send) -> None:
        """Say what serves; after a POST follow from here on."""
        if scope["method"] == "POST":
            self._alias_s = float(json.loads(await _body(receive)).get("alias_s", ALIAS_S))
            if not self._follows:
                self._follows = True
                self._take_name(scope["app"].state.openai_serving_models)
        body = json.dumps({"name": self._name, "follows": self._follows}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    async def _renamed(self, scope: Message, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return given.pop() if given else await receive()

        await self._passed(scope, again, send, before_end=lambda: self._note(scope, body))

    def _note(self, scope: Message, body: bytes) -> None:
        self._name = str(json.loads(body)["new_version"])
        if self._follows:
            self._take_name(scope["app"].state.openai_serving_models)

    def _take_name(self, models: Any) -> None:
        """Answer by the name of what serves; the list is the one that all of vLLM's handlers look into."""
        listed = models.base_model_paths
        self._own = self._own or list(listed)
        before = listed[0]
        now = self._own if self._name == BASE else [type(before)(name=self._name, model_path=before.model_path)]
        if self._alias is not None:
            self._alias.cancel()
        known = {model.name for model in now}
        listed[:] = [*now, *(model for model in [before] if model.name not in known)]
        self._alias = asyncio.get_running_loop().call_later(self._alias_s, lambda: listed.__setitem__(slice(None), now))

    def _named(self, version: str, models: Any) -> str:
        """What it answers by when it serves a weight version."""
        return version if version != BASE else str((self._own or models.base_model_paths)[0].name)

    async def _passed(self, scope: Message, receive: Receive, send: Send, *, before_end: Callable[[], None] = lambda: None) -> int:
        """Pass a request on; its status.

        Args:
            before_end: called once it succeeded, before the caller knows.
        """
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                if status == 200:
                    before_end()
            await send(message)

        await self._app(scope, receive, watched)
        return status


async def _body(receive: Receive) -> bytes:
    """The body of a request, as far as it may be that long."""
    body = b""
    while len(body) <= MAX_BODY_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body
