"""One exchange under way: asked, passed on, and recorded as what it was before its last byte leaves."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog
from starlette.types import Receive, Send

from reef.errors import ReefError, UpstreamError, UpstreamTimeout
from reef.experience import ids, jsontext
from reef.experience.dialects import token_counts
from reef.gateway import sse, wire
from reef.gateway.capture import Capture, CapturingTap
from reef.gateway.correlation import check_weights
from reef.gateway.dialects import Dialect
from reef.gateway.keepalive import Delivery
from reef.gateway.stopwatch import Stopwatch
from reef.types import JSON, End, Origin, Record

if TYPE_CHECKING:
    from reef.experience.framing import Ahead
    from reef.gateway.state import GatewayState
    from reef.serving.upstream import Answer

log = structlog.get_logger()

WATCH_AFTER_S = 0.02
"""An exchange this long gets a task that watches for its client to leave; no model is faster, but errors and tests are."""
AFTER_DONE_S = 1.0
"""How long the upstream gets to end its body after the last event; its connection can then be used again."""
MAX_MODEL_CHARS = 256
MAX_SAID_BYTES = 2000
"""How much of an upstream's own error goes into an event of ours."""
NO_ANSWER_BYTES = 65_536
"""How much of an answer that is not JSON is kept."""


class Exchange:
    """One exchange under way. Its end is decided once, and recorded as what it was."""

    def __init__(
        self,
        state: GatewayState,
        *,
        dialect: Dialect,
        scenario: str,
        session: str | None,
        release: int | None,
        candidate: str | None,
        origin: Origin,
        body: dict[str, JSON],
        asked: dict[str, JSON],
        text: bytes,
        raw: bytes,
        headers: dict[bytes, bytes],
        query: bytes = b"",
        clock: float,
    ) -> None:
        self._state = state
        self._dialect = dialect
        self._query = query
        self._scenario = scenario
        self._session = session
        self._release = release
        self._candidate = candidate
        self._origin = origin
        self._body = body
        self._text: bytes | Ahead = text
        """What the body was read from."""
        named = asked.get("model")
        self._route = state.upstreams.route(dialect.name, named)
        if type(named) is str and "." in named and origin is Origin.USER:
            check_weights(named, scenario=scenario, scenarios=state.scenarios.heads, asked=self._route.names)
        self._upstream = self._route.where
        """Who is asked, or answered."""
        self._capture: Capture | None = None
        self._asked = asked
        self._headers = dialect.passed(headers)
        if state.captures_tokens and self._route.gives_tokens and Capture.can(dialect.name, body):
            self._capture = Capture(body)
            self._asked = self._capture.ask(asked)
            raw = jsontext.dumps(self._asked)
            self._headers = self._capture.headers(self._headers)
        self._sent, model = self._route.address(self._asked, raw)
        self._model = _storable(model)
        self._receipt = ids.receipt()
        self._receipt_header = (wire.RECEIPT_HEADER, self._receipt.encode())
        self._started_at = time.time()
        self._time = Stopwatch(clock)
        self._traceparent = headers.get(b"traceparent", b"")
        self._delivery: Delivery | None = None
        self._status = 0
        self._tap: sse.Tap | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._client_gone = False
        self._recorded: Record | None = None

    async def run(self, receive: Receive, send: Send) -> None:
        """Ask the upstream, pass the answer on, record."""
        loop = asyncio.get_running_loop()  # asked once: before Python 3.12 each time is a system call
        task = asyncio.current_task(loop)
        assert task is not None
        watch = loop.call_later(WATCH_AFTER_S, self._start_watching, receive, task)
        answer: Answer | None = None
        self._begin(send)
        loop.call_soon(self._send_ahead)  # when the request is on its way to the upstream
        try:
            answer = await self._route.post(
                self._dialect.upstream_path, self._sent, body=self._asked, headers=self._headers, query=self._query
            )
            if answer.where != self._upstream or answer.model:
                self._upstream, self._model = answer.where, _storable(answer.model) or self._model
            self._time.back()
            if self._delivery is not None:
                await self._delivery.settle()
            self._status = 200 if self._begun else answer.status
            if answer.streamed:
                await self._stream(answer, send)
            else:
                await self._whole(answer, send)
        except ReefError as error:
            await self._refuse(error, send)
        except Exception as error:
            log.exception("inference failed", receipt=self._receipt)
            hint = "The log of the gateway has the details: `reef status` says where it is."
            await self._refuse(ReefError(f"something in Reef went wrong: {type(error).__name__}", hint=hint), send)
        except asyncio.CancelledError:
            if answer is not None:
                answer.close()  # first: the upstream must stop at once
            if not self._client_gone:
                await self._refuse(UpstreamError("the gateway was stopped before the answer ended", hint="Send the request again."), send)
                raise
            task.uncancel()
            await self._abandon()
        finally:
            watch.cancel()
            if answer is not None:
                answer.close()
            self._finish()

    def _begin(self, send: Send) -> None:
        self._state.metrics.under_way += 1
        asked_at = self._time.leave()
        if self._body.get("stream") is True:
            self._deliver(send).silent_since = asked_at

    def _send_ahead(self) -> None:
        """Have the request read by whoever stores it while the model thinks."""
        if isinstance(self._text, bytes) and self._recorded is None and self._state.config.storage.record:
            self._text = self._state.writer.ahead(self._text, scenario=self._scenario, session=self._session, dialect=self._dialect.name)

    def _finish(self) -> None:
        self._stop_watching()
        self._state.metrics.under_way -= 1
        if self._delivery is not None:
            self._state.keep_alive.remove(self._delivery)
        if self._recorded is not None and self._state.tracing is not None:
            self._state.tracing.exchange(self._recorded, own_ms=self._time.own_ms, traceparent=self._traceparent.decode("latin-1"))

    @property
    def _begun(self) -> bool:
        """Whether the client was sent the head of a stream."""
        return self._delivery is not None and self._delivery.begun

    def _deliver(self, send: Send) -> Delivery:
        """The way of a stream to the client, which is looked after from now on."""
        if self._delivery is None:
            self._delivery = Delivery(send, head=self._early_head)
            self._state.keep_alive.add(self._delivery)
        return self._delivery

    def _early_head(self) -> wire.Headers:
        """Of a stream whose upstream is silent before its own head."""
        return [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *self._own_headers(), wire.NO_BUFFERING]

    def _own_headers(self) -> wire.Headers:
        return [self._receipt_header, (wire.OVERHEAD_HEADER, b"%.2f" % self._time.own_ms)]

    def _start_watching(self, receive: Receive, exchange: asyncio.Task[None]) -> None:
        if self._recorded is None:
            self._watcher = asyncio.create_task(self._watch(receive, exchange))

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None  # its end holds its frame, and that this exchange: a ring

    async def _watch(self, receive: Receive, exchange: asyncio.Task[None]) -> None:
        """Stop the exchange when its client goes away, whatever it is waiting for."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client_gone = True
        exchange.cancel()

    async def _whole(self, answer: Answer, send: Send) -> None:
        """An answer that is no stream: it leaves when all of it is there."""
        self._time.note_first_byte()
        self._time.leave()
        body = await answer.read()
        self._time.back()
        parsed: JSON
        text: bytes | None
        try:
            parsed, text = jsontext.loads(body), body
            is_json = isinstance(parsed, dict)
        except ValueError:
            parsed, text, is_json = body[:NO_ANSWER_BYTES].decode("utf-8", "replace"), None, False
        if self._capture is not None and is_json:
            self._capture.take(parsed)
            body = text = jsontext.dumps(parsed)
        end, error = End.COMPLETE, ""
        if answer.status >= 300:
            end, error = End.UPSTREAM_ERROR, f"the upstream answered {answer.status}"
        elif not is_json:
            end, error = End.UPSTREAM_ERROR, "the upstream's answer is not a JSON object"
        elif (fault := self._dialect.fault(parsed)) is not None:
            end, error = fault
        if self._begun:
            raise _Late(error or "the upstream answered as a whole where a stream was asked for", body=body, parsed=parsed)
        await self._record(end, response=parsed, text=text, error=error)
        await wire.send_whole(send, status=answer.status, headers=[*answer.headers(), *self._own_headers()], body=body)

    async def _stream(self, answer: Answer, send: Send) -> None:
        """An answer in events: they leave as they come, and the end waits for the record."""
        tap = self._tap = self._dialect.tap() if self._capture is None else CapturingTap(self._capture)
        delivery = self._deliver(send)
        delivery.tap = tap
        if not delivery.begun:
            delivery.begun = True
            headers = [*answer.headers(), *self._own_headers(), wire.NO_BUFFERING]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        delivery.silent_since = self._time.leave()
        broken: UpstreamError | None = None
        try:
            while chunk := await answer.next():
                delivery.silent_since = 0.0
                if delivery.breath is not None:
                    await delivery.settle()
                if self._time.first_byte_ms is None:
                    self._time.note_first_byte()
                if ready := tap.feed(chunk):
                    await send({"type": "http.response.body", "body": ready, "more_body": True})
                if tap.done:
                    await self._await_end(answer, tap)
                    break
                delivery.silent_since = time.perf_counter()
        except UpstreamError as error:
            broken = error
        self._time.back()
        await delivery.settle()
        tap.finish()
        wanted = self._body.get("n")
        if tap.assembly.finished(choices=wanted if type(wanted) is int else 1):
            await self._record(End.COMPLETE, response=tap.assembly.completion())
            await send({"type": "http.response.body", "body": tap.held})
            return
        if tap.assembly.error is not None:
            raise _Reported(tap.assembly.error, last=tap.held if tap.failed else b"")
        raise broken or UpstreamError(
            "the stream ended before the answer did", hint="Send the request again; what arrived is recorded as truncated."
        )

    async def _await_end(self, answer: Answer, tap: sse.Tap) -> None:
        """After the last event only the end of the body is left; it usually came with it."""
        if answer.ended:
            return
        try:
            async with asyncio.timeout(AFTER_DONE_S):
                while chunk := await answer.next():
                    tap.feed(chunk)
        except (TimeoutError, UpstreamError):
            log.info("upstream left its stream open after the last event", receipt=self._receipt)

    async def _refuse(self, error: ReefError, send: Send) -> None:
        """The exchange failed: record what it was, and say so in the form the client can read by now."""
        if self._delivery is not None:
            await self._delivery.settle()
        streaming = self._begun
        self._status = (self._status or 200) if streaming else error.status
        if self._recorded is None:
            response = error.parsed if isinstance(error, _Late) else self._partial()
            try:
                await self._record(self._end_of(error), response=response, error=error.message)
            except ReefError as storage:
                error = storage
        if not streaming:
            kept = [header for header in self._own_headers() if error.status != 507 or header is not self._receipt_header]
            await wire.send_error(send, error, dialect=self._dialect, headers=kept)
            return
        body = b"\n" + (error.last if isinstance(error, _Reported) else self._dialect.error_event(error))
        await send({"type": "http.response.body", "body": body})

    def _end_of(self, error: ReefError) -> End:
        if isinstance(error, _Reported | _Late):
            return End.UPSTREAM_ERROR
        if isinstance(error, UpstreamTimeout):
            return End.TIMEOUT
        return End.TRUNCATED if self._tap is not None or self._time.first_byte_ms is not None else End.UPSTREAM_ERROR

    def _partial(self) -> JSON:
        if self._tap is None:
            return None
        self._tap.catch_up()
        return self._tap.assembly.completion()

    async def _abandon(self) -> None:
        """Record an exchange whose client went away."""
        if self._recorded is None:
            try:
                await self._record(End.CLIENT_GONE, response=self._partial(), error="the client closed the connection")
            except ReefError as error:
                log.error("record lost", receipt=self._receipt, reason=error.message)

    async def _record(self, end: End, *, response: JSON, text: bytes | None = None, error: str = "") -> None:
        """Commit the record. From here on a client that goes away changes nothing.

        Args:
            end: how it ended.
            response: what was answered.
            text: the JSON text that the response was read from, where there is one.
            error: why it did not end well.
        """
        self._stop_watching()
        self._time.back()
        self._recorded = Record(
            id=self._receipt,
            scenario=self._scenario,
            session=self._session,
            release=self._release,
            candidate=self._candidate,
            origin=self._origin,
            dialect=self._dialect.name,
            upstream=self._upstream,
            model=self._model,
            end=end,
            status=self._status or (200 if self._begun else 0),
            streamed=self._begun,
            request=self._body,
            response=response,
            usage=token_counts(response),
            started_at=self._started_at,
            first_byte_ms=self._time.first_byte_ms,
            duration_ms=self._time.passed_ms,
            error=_plain(error) if error else "",
            tokens=None if self._capture is None or end is not End.COMPLETE else self._capture.trace(),
        )
        handed_over = time.perf_counter()
        try:
            if self._state.config.storage.record:
                await self._state.writer.record(self._recorded, request=self._text, response=text)
        except ReefError:
            self._state.metrics.not_stored += 1
            raise
        finally:
            self._state.metrics.exchange(self._recorded, own_s=self._time.own_ms / 1000, commit_s=time.perf_counter() - handed_over)


class _Reported(UpstreamError):
    """The upstream reported an error inside its own stream, and the client has read it already."""

    def __init__(self, error: JSON, *, last: bytes = b"") -> None:
        super().__init__(f"the upstream reported: {jsontext.dumps(error)[:500].decode('utf-8', 'replace')}")
        self.last = last
        """The event that was held and tells of it."""


class _Late(UpstreamError):
    """The upstream answered with something else than a stream, after its silence had made the gateway begin one."""

    def __init__(self, problem: str, *, body: bytes, parsed: JSON) -> None:
        said = body[:MAX_SAID_BYTES].decode("utf-8", "replace")
        super().__init__(f"{problem}: {said}", hint="It was silent for so long that the stream had begun: listen.keep_alive_s.")
        self.parsed = parsed


def _storable(model: str) -> str:
    """A model's name as it goes into a column, whatever the caller wrote."""
    return _plain(model[:MAX_MODEL_CHARS])


def _plain(text: str) -> str:
    """Without what a column of text has no place for: lone surrogates, and in PostgreSQL NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
