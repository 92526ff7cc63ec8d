"""The contract of an upstream: what a plugin in ``reef.upstreams`` has to bring.

A complete one, for a server with an odd greeting in front of its API::

    class Polite(OpenAIUpstream):
        async def post(self, path, body, *, headers, query=b""):
            return await super().post("/please" + path, body, headers=headers, query=query)

and one that answers by itself::

    class Parrot(Upstream):
        async def post(self, path, body, *, headers, query=b""):
            said = json.loads(body)["messages"][-1]["content"]
            message = {"role": "assistant", "content": said}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            whole = {"id": "parrot", "object": "chat.completion", "model": self.model, "choices": [choice]}
            return WholeAnswer(json.dumps(whole).encode(), where=self.where)

        async def models(self):
            return WholeAnswer(b'{"object": "list", "data": [{"id": "parrot", "object": "model"}]}', where=self.where)

        async def reachable(self, *, timeout_s=2.0):
            return True
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from reef.config import UpstreamConfig
from reef.errors import UpstreamError

MAX_ANSWER_BYTES = 256 * 1024 * 1024
Headers = list[tuple[bytes, bytes]]


class Answer(ABC):
    """An answer under way. Close it when done; closing one that is not at its end stops the upstream at once."""

    status: int
    content_type: str
    where: str
    """Who answers: the upstream's URL, or its name where it has none. Records keep it."""
    model: str = ""
    """The model that was asked for, where a fallback made it another than the first."""

    @property
    def streamed(self) -> bool:
        """Whether it comes as server-sent events."""
        return self.status < 400 and self.content_type.startswith("text/event-stream")

    @property
    def ended(self) -> bool:
        """Whether all of it is taken, as far as that is known without asking for more."""
        return False

    @abstractmethod
    def headers(self) -> Headers:
        """The provider's own headers, names in lower case, for an ASGI server; none that is about the connection."""

    @abstractmethod
    async def next(self) -> bytes:
        """What arrived since; empty at the end.

        Raises:
            UpstreamError: the connection broke before the end. A broken answer must never end as if it were whole.
            UpstreamTimeout: silence beyond the bound.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go."""

    async def read(self) -> bytes:
        """The whole of it.

        Raises:
            UpstreamError: the connection broke before the end, or the answer is beyond all measure.
            UpstreamTimeout: silence beyond the bound.
        """
        parts: list[bytes] = []
        size = 0
        while part := await self.next():
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise UpstreamError(f"{self.where} answered with more than {MAX_ANSWER_BYTES >> 20} MiB", hint="Ask for a stream.")
        return b"".join(parts)


class WholeAnswer(Answer):
    """An answer that is there already."""

    def __init__(
        self, body: bytes, *, where: str, status: int = 200, content_type: str = "application/json", headers: Headers | None = None
    ) -> None:
        self.status = status
        self.content_type = content_type
        self.where = where
        self._body = body
        self._headers = headers or []

    def headers(self) -> Headers:
        return [(b"content-type", self.content_type.encode("latin-1")), *self._headers]

    async def next(self) -> bytes:
        body, self._body = self._body, b""
        return body

    def close(self) -> None:
        self._body = b""


class Upstream(ABC):
    """A place answers come from. One object for each upstream that is configured, in the event loop of the gateway.

    Args:
        config: its section of serve.yaml: address, key variable, model and bounds.
        name: what the section is called.
    """

    SPEAKS: ClassVar[tuple[str, ...]] = ("chat",)
    """The dialects it speaks where its ``dialects`` are not configured."""
    GIVES_TOKENS: ClassVar[bool] = False
    """Whether it can be asked for token ids and log-probabilities of what it says, as vLLM can."""
    TRANSLATED: ClassVar[bool] = False
    """Whether LiteLLM may ask ``url`` itself, in one of the dialects spoken there, for callers who speak another."""

    def __init__(self, config: UpstreamConfig, *, name: str) -> None:
        self.config = config
        self.name = name
        self.url = config.url
        self.where = config.url or name
        self.model = config.model
        self.dialects: tuple[str, ...] = config.dialects or self.SPEAKS

    @property
    def key(self) -> str:
        """Its key: from the environment variable that its own section names, and from nowhere else."""
        return os.environ.get(self.config.key_env, "") if self.config.key_env else ""

    async def open(self) -> None:  # noqa: B027 - many need nothing
        """Make ready to be asked, inside the event loop that will ask."""

    async def close(self) -> None:  # noqa: B027
        """Let go of what :meth:`open` took."""

    @abstractmethod
    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        """Send a request; return when the head of the answer is there. Cancelling it must end the request at once.

        Args:
            path: of the dialect: ``/chat/completions``, ``/responses``, ``/messages`` or ``/messages/count_tokens``.
            body: JSON, with the model to ask for.
            headers: of the caller, already sifted; never its token.
            query: what follows ``?``, as the caller wrote it.

        Raises:
            UpstreamError: refused, reset, or not HTTP.
            UpstreamTimeout: no connection or no answer within the bounds.
        """

    @abstractmethod
    async def models(self) -> Answer:
        """The models it has, as OpenAI's and Anthropic's ``GET /v1/models`` list them.

        Raises:
            UpstreamError: as :meth:`post`.
        """

    @abstractmethod
    async def reachable(self, *, timeout_s: float = 2.0) -> bool:
        """Whether anything answers there, whatever it says."""
