"""A model server as upstream, in whatever dialects it speaks itself: bytes out, bytes back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self

import aiohttp
from yarl import URL

from reef.config import UpstreamConfig
from reef.errors import InvalidRequest, UpstreamError, UpstreamTimeout
from reef.experience import jsontext
from reef.types import JSON

ALIASES = frozenset({"reef", "default", ""})
"""Model names that mean "whatever is configured"; any other is the caller's own choice and is left alone."""
KEEP_ALIVE_S = 4.0
"""Below the 5 s after which common servers (uvicorn, Node) drop an idle connection: a request must not meet a closing one."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024
MOST_URLS = 64
"""How many URLs are kept ready-made; callers choose what follows the ``?``."""
ANTHROPIC = ("messages",)
ANTHROPIC_VERSION = "2023-06-01"
"""Said where no caller says it: without it Anthropic's own API answers nothing."""
HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"content-length", b"content-encoding", b"date", b"server", b"set-cookie", b"alt-svc",
        b"strict-transport-security", b"x-reef-agent-record-id",
    }
)  # fmt: skip
"""Headers of an answer that are about the connection to the upstream, not about the answer."""


class Answer:
    """An answer under way. Close it when done; an answer that is not at its end loses its connection, which stops the upstream."""

    def __init__(self, response: aiohttp.ClientResponse, *, where: str) -> None:
        self._response = response
        self._where = where
        self.status = response.status
        self.content_type = response.headers.get("content-type", "")

    @property
    def streamed(self) -> bool:
        """Whether it comes as server-sent events."""
        return self.status < 400 and self.content_type.startswith("text/event-stream")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The provider's own headers, for an ASGI server."""
        return [(name.lower(), value) for name, value in self._response.raw_headers if name.lower() not in HOP_BY_HOP]

    async def next(self) -> bytes:
        """What arrived since; empty at the end.

        Raises:
            UpstreamError: the connection broke before the end.
            UpstreamTimeout: silence beyond the bound.
        """
        try:
            return await self._response.content.readany()
        except TimeoutError:
            raise self._silent() from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error) from error

    async def read(self) -> bytes:
        """The whole of it.

        Raises:
            UpstreamError: the connection broke before the end, or the answer is beyond all measure.
            UpstreamTimeout: silence beyond the bound.
        """
        parts = [await self.next()]
        size = len(parts[0])
        while not self._response.content.at_eof():
            parts.append(await self.next())
            size += len(parts[-1])
            if size > MAX_ANSWER_BYTES:
                raise UpstreamError(f"{self._where} answered with more than {MAX_ANSWER_BYTES >> 20} MiB", hint="Ask for a stream.")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Let go: the connection goes back to the pool if the answer is at its end, and is cut if not."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()

    def _silent(self) -> UpstreamTimeout:
        return UpstreamTimeout(f"{self._where} went silent in mid-answer", hint="upstream.timeout_s bounds the silence.")

    def _broken(self, error: Exception) -> UpstreamError:
        return UpstreamError(
            f"{self._where} broke off in mid-answer ({type(error).__name__})",
            hint="Send the request again; what arrived is recorded as truncated.",
        )


class OpenAIUpstream:
    """Passes requests to an OpenAI-compatible server, or to one that speaks Anthropic's dialect.

    Use it as an async context manager, inside the event loop that will use it.

    Args:
        config: address, key variable, model and bounds.
    """

    def __init__(self, config: UpstreamConfig) -> None:
        self.url = config.url
        self.model = config.model
        self._config = config
        self.dialects = config.dialects
        self._urls: dict[str, URL] = {}
        self._defaults: dict[str, str] = {}
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "reef"}  # compressed bytes could not be passed through and read
        if config.key_env and (key := os.environ.get(config.key_env)):
            if config.dialects != ANTHROPIC:
                self._headers["Authorization"] = f"Bearer {key}"
            if "messages" in config.dialects:
                self._headers["x-api-key"] = key
        if config.dialects == ANTHROPIC:
            self._defaults["anthropic-version"] = ANTHROPIC_VERSION
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._config.connect_timeout_s, sock_read=self._config.timeout_s),
            skip_auto_headers=("Accept", "Content-Type"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def check_speaks(self, dialect: str) -> None:
        """Check a dialect.

        Raises:
            InvalidRequest: it is none of the upstream's.
        """
        if dialect not in self.dialects:
            raise InvalidRequest(
                f"the upstream does not speak the {dialect} dialect",
                hint=f"If it does after all, add {dialect} to upstream.dialects, now [{', '.join(self.dialects)}].",
            )

    def address(self, body: dict[str, JSON], raw: bytes) -> tuple[bytes, str]:
        """The bytes to send, and the model they ask for.

        The caller's bytes are left alone unless it named no model of its own and one is configured.
        """
        asked = body.get("model")
        if self.model and (asked is None or (isinstance(asked, str) and asked in ALIASES)):
            return jsontext.dumps({**body, "model": self.model}), self.model
        return raw, asked if isinstance(asked, str) else ""

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        """Send a request; return when the head of the answer is there.

        Args:
            path: below the upstream's base URL, e.g. ``/chat/completions``.
            headers: of the caller, already sifted. The key is added here.
            query: what follows ``?``, as the caller wrote it.

        Raises:
            UpstreamError: refused, reset, or not HTTP.
            UpstreamTimeout: no connection or no answer within the bounds.
        """
        return await self._request("POST", path, body=body, headers=headers, query=query)

    async def get(self, path: str) -> Answer:
        """Like :meth:`post`, without a body."""
        return await self._request("GET", path, body=None, headers={})

    async def reachable(self, *, timeout_s: float = 2.0) -> bool:
        """Whether anything answers there, whatever it says."""
        session = self._open_session()
        try:
            bound = aiohttp.ClientTimeout(total=timeout_s)
            async with session.get(self._url("/models"), headers=self._headers, timeout=bound, allow_redirects=False):
                return True
        except (aiohttp.ClientError, OSError):
            return False

    async def _request(self, method: str, path: str, *, body: bytes | None, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        session = self._open_session()
        try:
            response = await session.request(
                method,
                self._url(path, query),
                data=body,
                headers={**self._defaults, **headers, **self._headers},
                allow_redirects=False,
            )
        except TimeoutError:
            raise UpstreamTimeout(
                f"{self.url} did not answer in time",
                hint=f"{self._config.connect_timeout_s:g} s to connect, {self._config.timeout_s:g} s of silence (upstream.timeout_s).",
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamError(
                f"{self.url} cannot be reached: {_reason(error)}", hint="Is the model server running, and is upstream.url right?"
            ) from error
        return Answer(response, where=self.url)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None or not self.url:
            raise UpstreamError("no upstream is configured", hint="Set upstream.url in serve.yaml, or use `reef serve --upstream URL`.")
        return self._session

    def _url(self, path: str, query: bytes = b"") -> URL:
        if query:
            path = f"{path}?{query.decode('latin-1')}"
        url = self._urls.get(path)
        if url is None:
            url = URL(self.url + path)
            if len(self._urls) < MOST_URLS:
                self._urls[path] = url
        return url


def _reason(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__} {text}" if text else type(error).__name__
