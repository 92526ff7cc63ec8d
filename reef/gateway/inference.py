"""The hot path: one inference exchange, from the caller's bytes to the provider's, with its record on disk before the last of them.

Plain ASGI. A request is parsed once; bytes are passed on as they are. Nothing here asks the database.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog
from starlette.types import Receive, Scope, Send

from reef.errors import InvalidRequest, ReefError, UpstreamError, UpstreamTimeout
from reef.experience import ids, jsontext
from reef.experience.dialects import token_counts
from reef.gateway import sse, wire
from reef.gateway.auth import CALLER, Caller
from reef.gateway.dialects import Dialect
from reef.gateway.scenario_index import check_name
from reef.types import JSON, End, Origin, Record

if TYPE_CHECKING:
    from reef.gateway.state import GatewayState
    from reef.serving.upstream import Answer

log = structlog.get_logger()

WATCH_AFTER_S = 0.02
"""An exchange this long gets a task that watches for its client to leave; no model is faster, but errors and tests are."""
AFTER_DONE_S = 1.0
"""How long the upstream gets to end its body after the last event; its connection can then be used again."""
MAX_MODEL_CHARS = 256
NO_ANSWER_BYTES = 65_536
"""How much of an answer that is not JSON is kept."""


class Inference:
    """The ASGI app of the inference routes."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, dialect: Dialect, scenario: str = "", session: str = ""
    ) -> None:
        """Serve one request; ``scenario`` and ``session`` come from a base URL that names them, and go before headers."""
        try:
            exchange = await self._accept(scope, receive, dialect=dialect, scenario=scenario, session=session)
        except ReefError as error:
            await wire.send_error(send, error, dialect=dialect)
        except wire.ClientGone:
            return
        else:
            await exchange.run(receive, send)

    async def _accept(self, scope: Scope, receive: Receive, *, dialect: Dialect, scenario: str, session: str) -> Exchange:
        state = self._state
        headers = wire.header_map(scope)
        caller: Caller = scope[CALLER]
        caller.require("infer")
        scenario = scenario or headers.get(b"x-reef-scenario", b"").decode("latin-1") or state.scenarios.default
        state.scenarios.check(scenario)
        session = session or headers.get(b"x-reef-session", b"").decode("latin-1")
        if session:
            check_name(session, what="session")
        release = _release(headers.get(b"x-reef-release"))
        state.upstream.check_speaks(dialect.name)
        raw = await wire.read_body(headers, receive)
        body = wire.json_object(raw)
        state.scenarios.touch(scenario)
        return Exchange(
            state,
            dialect=dialect,
            scenario=scenario,
            session=session or None,
            release=release,
            origin=caller.origin,
            body=body,
            raw=raw,
            headers=headers,
            query=scope["query_string"] if dialect.passes_query else b"",
        )


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
        origin: Origin,
        body: dict[str, JSON],
        raw: bytes,
        headers: dict[bytes, bytes],
        query: bytes = b"",
    ) -> None:
        self._state = state
        self._dialect = dialect
        self._query = query
        self._scenario = scenario
        self._session = session
        self._release = release
        self._origin = origin
        self._body = body
        self._sent, model = state.upstream.address(body, raw)
        self._model = model[:MAX_MODEL_CHARS].encode("utf-8", "replace").decode()  # it goes into a column, whatever the caller wrote
        self._headers = dialect.passed(headers)
        self._receipt = ids.receipt()
        self._receipt_header = (wire.RECEIPT_HEADER, self._receipt.encode())
        self._started_at = time.time()
        self._clock = time.perf_counter()
        self._first_byte_ms: float | None = None
        self._status = 0
        self._tap: sse.Tap | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._client_gone = False
        self._recorded = False

    async def run(self, receive: Receive, send: Send) -> None:
        """Ask the upstream, pass the answer on, record."""
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._start_watching, receive, task)
        answer: Answer | None = None
        try:
            answer = await self._state.upstream.post(self._dialect.upstream_path, self._sent, headers=self._headers, query=self._query)
            self._status = answer.status
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
            self._stop_watching()
            if answer is not None:
                answer.close()

    def _start_watching(self, receive: Receive, exchange: asyncio.Task[None]) -> None:
        if not self._recorded:
            self._watcher = asyncio.create_task(self._watch(receive, exchange))

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    async def _watch(self, receive: Receive, exchange: asyncio.Task[None]) -> None:
        """Stop the exchange when its client goes away, whatever it is waiting for."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client_gone = True
        exchange.cancel()

    async def _whole(self, answer: Answer, send: Send) -> None:
        """An answer that is no stream: it leaves when all of it is there."""
        self._note_first_byte()
        body = await answer.read()
        parsed: JSON
        try:
            parsed = jsontext.loads(body)
            is_json = isinstance(parsed, dict)
        except ValueError:
            parsed, is_json = body[:NO_ANSWER_BYTES].decode("utf-8", "replace"), False
        end, error = End.COMPLETE, ""
        if answer.status >= 300:
            end, error = End.UPSTREAM_ERROR, f"the upstream answered {answer.status}"
        elif not is_json:
            end, error = End.UPSTREAM_ERROR, "the upstream's answer is not a JSON object"
        elif (fault := self._dialect.fault(parsed)) is not None:
            end, error = fault
        await self._record(end, response=parsed, error=error)
        await wire.send_whole(send, status=answer.status, headers=[*answer.headers(), self._receipt_header], body=body)

    async def _stream(self, answer: Answer, send: Send) -> None:
        """An answer in events: they leave as they come, and the end waits for the record."""
        tap = self._tap = self._dialect.tap()
        headers = [*answer.headers(), self._receipt_header, (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        broken: UpstreamError | None = None
        try:
            while chunk := await answer.next():
                if self._first_byte_ms is None:
                    self._note_first_byte()
                if ready := tap.feed(chunk):
                    await send({"type": "http.response.body", "body": ready, "more_body": True})
                if tap.done:
                    await self._await_end(answer, tap)
                    break
        except UpstreamError as error:
            broken = error
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
        try:
            async with asyncio.timeout(AFTER_DONE_S):
                while chunk := await answer.next():
                    tap.feed(chunk)
        except (TimeoutError, UpstreamError):
            log.info("upstream left its stream open after the last event", receipt=self._receipt)

    async def _refuse(self, error: ReefError, send: Send) -> None:
        """The exchange failed: record what it was, and say so in the form the client can read by now."""
        streaming = self._tap is not None
        if not streaming:
            self._status = error.status
        if not self._recorded:
            try:
                await self._record(self._end_of(error), response=self._partial(), error=error.message)
            except ReefError as storage:
                error = storage
        if not streaming:
            kept = () if error.status == 507 else (self._receipt_header,)
            await wire.send_error(send, error, dialect=self._dialect, headers=kept)
            return
        body = b"\n" + (error.last if isinstance(error, _Reported) else self._dialect.error_event(error))
        await send({"type": "http.response.body", "body": body})

    def _end_of(self, error: ReefError) -> End:
        if isinstance(error, _Reported):
            return End.UPSTREAM_ERROR
        if isinstance(error, UpstreamTimeout):
            return End.TIMEOUT
        return End.TRUNCATED if self._tap is not None or self._first_byte_ms is not None else End.UPSTREAM_ERROR

    def _partial(self) -> JSON:
        if self._tap is None:
            return None
        self._tap.catch_up()
        return self._tap.assembly.completion()

    def _note_first_byte(self) -> None:
        self._first_byte_ms = (time.perf_counter() - self._clock) * 1000

    async def _abandon(self) -> None:
        """Record an exchange whose client went away."""
        if not self._recorded:
            try:
                await self._record(End.CLIENT_GONE, response=self._partial(), error="the client closed the connection")
            except ReefError as error:
                log.error("record lost", receipt=self._receipt, reason=error.message)

    async def _record(self, end: End, *, response: JSON, error: str = "") -> None:
        """Commit the record. From here on a client that goes away changes nothing."""
        self._stop_watching()
        self._recorded = True
        await self._state.writer.record(
            Record(
                id=self._receipt,
                scenario=self._scenario,
                session=self._session,
                release=self._release,
                origin=self._origin,
                dialect=self._dialect.name,
                upstream=self._state.upstream.url,
                model=self._model,
                end=end,
                status=self._status,
                streamed=self._tap is not None,
                request=self._body,
                response=response,
                usage=token_counts(response),
                started_at=self._started_at,
                first_byte_ms=self._first_byte_ms,
                duration_ms=(time.perf_counter() - self._clock) * 1000,
                error=error,
            )
        )


class _Reported(UpstreamError):
    """The upstream reported an error inside its own stream, and the client has read it already."""

    def __init__(self, error: JSON, *, last: bytes = b"") -> None:
        super().__init__(f"the upstream reported: {jsontext.dumps(error)[:500].decode('utf-8', 'replace')}")
        self.last = last
        """The event that was held and tells of it."""


def _release(header: bytes | None) -> int | None:
    if header is None:
        return None
    if not header.isdigit() or not 0 < int(header[:12]) < 2**31:
        raise InvalidRequest(
            f"x-reef-release must be a whole number, not {header[:40].decode('latin-1')!r}", hint="It is the step of the release that runs."
        )
    return int(header)
