"""Upstreams whose bytes pass: HTTP servers that speak the caller's dialect themselves."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping

from yarl import URL

from reef.config import DIALECTS, UpstreamConfig
from reef.errors import InvalidRequest, UpstreamError, UpstreamTimeout
from reef.serving import http1
from reef.serving.upstream import MAX_ANSWER_BYTES, Answer, Headers, Upstream

MOST_HEADS = 256
"""How many heads are kept ready-made; callers choose what is in them."""
ANTHROPIC = ("messages",)
ANTHROPIC_VERSION = "2023-06-01"
"""Said where no caller says it: without it Anthropic's own API answers nothing."""
HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"content-length", b"content-encoding", b"date", b"server", b"set-cookie", b"alt-svc",
        b"strict-transport-security", b"x-reef-agent-record-id", b"x-reef-overhead-ms", b"x-accel-buffering",
    }
)  # fmt: skip
"""Headers of an answer that are about the connection to the upstream, not about the answer."""


class HTTPAnswer(Answer):
    """An answer over HTTP; one that is not at its end loses its connection when it is closed, which stops the upstream."""

    def __init__(self, response: http1.Response, *, where: str) -> None:
        self._response = response
        self.where = where
        self.status = response.status
        self.content_type = ""
        for name, value in response.headers:
            if name == b"content-type":
                self.content_type = value.decode("latin-1")

    @property
    def ended(self) -> bool:
        return self._response.drained

    def headers(self) -> Headers:
        return [header for header in self._response.headers if header[0] not in HOP_BY_HOP]

    async def next(self) -> bytes:
        try:
            return await self._response.next()
        except http1.Silent:
            raise self._silent() from None
        except http1.Broken as error:
            raise self._broken(error) from error

    async def read(self) -> bytes:
        try:
            body = await self._response.read(most=MAX_ANSWER_BYTES)
        except http1.Silent:
            raise self._silent() from None
        except http1.Broken as error:
            raise self._broken(error) from error
        if len(body) > MAX_ANSWER_BYTES:
            raise UpstreamError(f"{self.where} answered with more than {MAX_ANSWER_BYTES >> 20} MiB", hint="Ask for a stream.")
        return body

    def close(self) -> None:
        self._response.close()

    def _silent(self) -> UpstreamTimeout:
        return UpstreamTimeout(f"{self.where} went silent in mid-answer", hint="upstream.timeout_s bounds the silence.")

    def _broken(self, error: Exception) -> UpstreamError:
        return UpstreamError(
            f"{self.where} broke off in mid-answer ({error})", hint="Send the request again; what arrived is recorded as truncated."
        )


class HTTPUpstream(Upstream):
    """Passes requests on to a server that speaks the caller's dialect itself: bytes out, bytes back."""

    TRANSLATED = True

    def __init__(self, config: UpstreamConfig, *, name: str) -> None:
        super().__init__(config, name=name)
        self._heads: dict[tuple[object, ...], bytes] = {}
        self._defaults: dict[str, str] = {}
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "reef"}  # compressed bytes could not be passed through and read
        if userinfo := URL(self.url).user:
            self._headers["Authorization"] = _basic(userinfo, URL(self.url).password or "")
        if key := self.key:
            if self.dialects != ANTHROPIC:
                self._headers["Authorization"] = f"Bearer {key}"
            if "messages" in self.dialects:
                self._headers["x-api-key"] = key
        if self.dialects == ANTHROPIC:
            self._defaults["anthropic-version"] = ANTHROPIC_VERSION
        self._pool: http1.Pool | None = None

    async def open(self) -> None:
        if self.url:
            bounds = {"connect_timeout_s": self.config.connect_timeout_s, "timeout_s": self.config.timeout_s}
            self._pool = http1.Pool(URL(self.url), **bounds)

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        return await self._request("POST", path, body=body, headers=headers, query=query)

    async def models(self) -> Answer:
        return await self._request("GET", "/models", body=b"", headers={})

    async def reachable(self, *, timeout_s: float = 2.0) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                (await self.models()).close()
        except (TimeoutError, UpstreamError):
            return False
        return True

    async def _request(self, method: str, path: str, *, body: bytes, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        if self._pool is None:
            raise UpstreamError("no upstream is configured", hint="Set upstream.url in serve.yaml, or use `reef serve --upstream URL`.")
        head = b"%bContent-Length: %d\r\n\r\n" % (self._head(method, path, query, headers), len(body))
        try:
            response = await self._pool.request(head, body)
        except http1.Silent:
            raise UpstreamTimeout(
                f"{self.url} did not answer in time",
                hint=f"{self.config.connect_timeout_s:g} s to connect, {self.config.timeout_s:g} s of silence (upstream.timeout_s).",
            ) from None
        except (http1.Unreachable, http1.Broken) as error:
            raise self._unreachable(error) from error
        return HTTPAnswer(response, where=self.where)

    def _unreachable(self, error: Exception) -> UpstreamError:
        return UpstreamError(f"{self.url} cannot be reached: {error}", hint="Is the model server running, and is upstream.url right?")

    def _head(self, method: str, path: str, query: bytes, headers: Mapping[str, str]) -> bytes:
        """Request line and headers, but for the length of the body. Most requests have the same as others before."""
        key = (method, path, query, *headers.items())
        head = self._heads.get(key)
        if head is None:
            url = URL(self.url + path + (f"?{query.decode('latin-1')}" if query else ""))
            host = url.raw_authority.rpartition("@")[2]
            head = f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {host}\r\n".encode("ascii")
            head += header_lines({**self._defaults, **headers, **self._headers})
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            self._heads[key] = head
        return head


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Headers as they are sent.

    Raises:
        InvalidRequest: a value that would be more than one line.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
        raise InvalidRequest("a header that is passed on has a line break in it", hint="Headers are single lines.")
    return lines.encode("latin-1")


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class OpenAIUpstream(HTTPUpstream):
    """An OpenAI-compatible server. Which dialects it speaks besides chat its section says."""


class AnthropicUpstream(HTTPUpstream):
    """Anthropic's API, or a server that is like it."""

    SPEAKS = ANTHROPIC


class RehearsalUpstream(HTTPUpstream):
    """The stand-in model (:mod:`reef.rehearsal`); the supervisor starts it and fills its address in."""

    SPEAKS = DIALECTS


def _reason(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__} {text}" if text else type(error).__name__
