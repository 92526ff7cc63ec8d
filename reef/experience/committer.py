"""Storing exchanges: :class:`Committer` does it here and now, :class:`Keeper` has it done by a process of its own.

To take messages apart, hash, compress and insert them holds the interpreter's lock about as long as serving does. In a thread of the
gateway that is time taken from its clients; in a process beside it, it is the time of another core.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, cast

import orjson
import sqlalchemy as sa

from reef import failpoints
from reef.errors import StorageError
from reef.experience import database, recall, statements
from reef.experience.framing import AHEAD, SIZE, Ahead, Buffer, Decoder, Encoder, Texts, frame
from reef.experience.prompts import Text
from reef.experience.rows import Dismantler
from reef.experience.structure import Stored
from reef.experience.threads import Thread
from reef.types import Record

STOP_S = 30.0
MOST_TRIES = 5
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(256 * 1024), "MALLOC_TRIM_THRESHOLD_": str(4 * 1024 * 1024)}
"""Of the process that stores. What it remembers is in tables of a quarter to half a MiB that are made anew every so often. By itself glibc
(mallopt(3)) soon makes room for them between smaller things and never gets it back: 0.56 MiB more each time. These keep them apart."""
ANSWER_S = 60.0
"""Bound on one batch; longer than the 30 s a locked SQLite is waited for."""


class Storing(Protocol):
    """Stores exchanges, for one event loop. Batches are stored in the order they were handed in; the next need not wait for the last."""

    def commit(self, records: Sequence[Record], texts: Sequence[Texts] = ()) -> asyncio.Future[list[str]]:
        """Store exchanges durably; one string for each: empty, or why just this one could not be stored.

        Args:
            records: the exchanges.
            texts: for each of them its JSON as it was written, where it needs not be written again; or nothing at all.

        The future fails with :class:`StorageError` where nothing could be stored, for a reason that has to do with none of them.
        """
        ...

    def ahead(self, request: bytes, *, scenario: str, session: str | None, dialect: str) -> bytes | Ahead:
        """Have a request read while its exchange is under way, if that can be; what comes back is to be committed as its text."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and processes."""
        ...


class Committer:
    """Stores exchanges on this thread, a batch in one transaction.

    Args:
        engine: the database; its tables exist.
        redact: take secrets out of what is stored.
    """

    def __init__(self, engine: sa.Engine, *, redact: bool = True) -> None:
        self._engine = engine
        self._begin = database.BEGIN_WRITE if engine.dialect.name == "sqlite" else ""
        self._refused = (sa.exc.OperationalError, engine.dialect.loaded_dbapi.OperationalError)
        self._dismantler = Dismantler(self._recall, self._recall_opening, redact=redact)
        self._inserts = statements.inserts(engine)
        self._decoder = Decoder()
        self._connection: sa.PoolProxiedConnection | None = None

    def commit(self, records: Sequence[Record], texts: Sequence[Text | None] = ()) -> list[str]:
        """Store exchanges here and now, see :meth:`Storing.commit`. One that cannot be stored does not take its neighbours down.

        Args:
            records: the exchanges.
            texts: the request of each, where it is a text; or nothing at all.

        Returns:
            For each an empty string, or why just this one could not be stored.

        Raises:
            StorageError: nothing could be stored, for a reason that has to do with none of them.
        """
        try:
            self._commit(records, texts)
        except self._refused as error:  # disk full, locked beyond the time-out, I/O error: it is the same for all of them
            raise StorageError(str(getattr(error, "orig", None) or error)) from error
        except Exception as error:  # noqa: BLE001 - told to the one caller whose record it was
            if len(records) == 1:
                return [f"{type(error).__name__}: {error}"]
            each = [slice(number, number + 1) for number in range(len(records))]
            return [problem for one in each for problem in self.commit(records[one], texts[one])]
        return [""] * len(records)

    def commit_encoded(self, batch: Buffer) -> list[str]:
        """:meth:`commit` for what one :class:`~reef.experience.framing.Encoder` wrote, in one piece."""
        found = self._decoder.decode(batch)
        readable = [item for item in found if not isinstance(item, str)]
        problems = iter(self.commit([record for record, _ in readable], [text for _, text in readable]) if readable else ())
        return [item if isinstance(item, str) else next(problems) for item in found]

    def read_ahead(self, message: Buffer) -> None:
        """Read a request whose record comes later."""
        self._decoder.read_ahead(message)

    def close(self) -> None:
        """Close the connection; the next batch opens one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _commit(self, records: Sequence[Record], texts: Sequence[Text | None]) -> None:
        for _ in range(MOST_TRIES):
            try:
                self._try_to_commit(records, texts)
                return
            except statements.BasesGone:  # retention dropped a session that was remembered: what there is is looked up again
                continue
        raise StorageError("records that others are based on are dropped as fast as they are looked up")

    def _try_to_commit(self, records: Sequence[Record], texts: Sequence[Text | None]) -> None:
        try:
            rows = self._dismantler.rows(records, texts)
            failpoints.reach("experience.rows")
            with self._transaction() as cursor:
                self._inserts.run(cursor, rows)
                failpoints.reach("experience.inserted")
            failpoints.reach("experience.committed")
        except BaseException:
            self._dismantler.forget()  # it took for stored what is not
            self.close()
            raise

    def _recall(self, scenario: str, session: str) -> list[Thread]:
        with self._engine.connect() as tx:
            return recall.threads(tx, scenario, session)

    def _recall_opening(self, opening: bytes) -> list[Stored]:
        with self._engine.connect() as tx:
            return recall.opening(tx, opening)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A transaction on a connection that stays open from batch to batch until something goes wrong with it; then it must be closed.

        By the driver alone: SQLAlchemy's own transaction takes as long as to insert seven records.
        """
        if self._connection is None:
            self._connection = self._engine.raw_connection()
        cursor = self._connection.cursor()
        if self._begin:  # other drivers begin by themselves
            cursor.execute(self._begin)
        yield cursor
        self._connection.commit()


class InThread:
    """A :class:`Committer` on a thread of this process.

    Args:
        engine: the database; its tables exist.
        redact: take secrets out of what is stored.
    """

    def __init__(self, engine: sa.Engine, *, redact: bool = True) -> None:
        self._committer = Committer(engine, redact=redact)
        self._encoder = Encoder()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="committer")

    def commit(self, records: Sequence[Record], texts: Sequence[Texts] = ()) -> asyncio.Future[list[str]]:
        """See :meth:`Storing.commit`."""
        batch = b"".join(self._encoder.encode(records, texts))
        return asyncio.get_running_loop().run_in_executor(self._thread, self._committer.commit_encoded, batch)

    def ahead(self, request: bytes, *, scenario: str, session: str | None, dialect: str) -> bytes | Ahead:
        """It is not: a thread would take its time from what is under way."""
        return request

    async def aclose(self) -> None:
        """See :meth:`Storing.aclose`."""
        await asyncio.to_thread(self._thread.shutdown)
        self._committer.close()


class Keeper:
    """Has exchanges stored by a process of its own, which ends with this one. It is started with the first batch, and again after it died.

    Args:
        url: the database.
        redact: take secrets out of what is stored.
    """

    def __init__(self, url: str, *, redact: bool = True) -> None:
        self._hello = {"url": url, "redact": redact}
        self.process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        """To a process that was started and not talked to yet."""
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    def start(self) -> None:
        """Start the process now instead of with the first batch: it loads while this one does."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "reef.experience.keeper", str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, env={**MALLOC, **os.environ}, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        # by this way, not by arguments or environment, which others may read: the URL may hold a password
        self._socket.sendall(frame(orjson.dumps(self._hello)))

    def commit(self, records: Sequence[Record], texts: Sequence[Texts] = ()) -> asyncio.Future[list[str]]:
        """See :meth:`Storing.commit`."""
        connection = self._connection
        if connection is not None and not connection.ended:
            return connection.send(records, texts)
        return asyncio.ensure_future(self._commit_first(records, texts))

    def ahead(self, request: bytes, *, scenario: str, session: str | None, dialect: str) -> bytes | Ahead:
        """See :meth:`Storing.ahead`."""
        connection = self._connection
        if connection is None or connection.ended:
            return request
        return connection.ahead(request, scenario=scenario, session=session, dialect=dialect)

    async def aclose(self) -> None:
        """End the process: it stores what it has, then sees the end of its socket."""
        if self._connection is not None:
            await self._connection.aclose()
        elif self._socket is not None:
            self._socket.close()
        if self.process is not None:
            await asyncio.to_thread(_reap, self.process)

    async def _commit_first(self, records: Sequence[Record], texts: Sequence[Texts]) -> list[str]:
        """Store after connecting, which one of those who come now does."""
        try:
            async with self._connecting:
                if self._connection is None or self._connection.ended:
                    self._connection = await self._connect()
        except OSError as error:
            raise StorageError(f"the process that stores records cannot be reached ({error})") from error
        return await self._connection.send(records, texts)

    async def _connect(self) -> _Connection:
        if self._socket is None:
            self.start()
        assert self.process is not None
        sock, self._socket, process = self._socket, None, self.process
        _, connection = await asyncio.get_running_loop().create_connection(lambda: _Connection(process), sock=sock)
        return connection


class _Connection(asyncio.Protocol):
    """To one process of a :class:`Keeper`, until it ends. Answers come in the order of the batches."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._waiting: deque[asyncio.Future[list[str]]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._encoder = Encoder()
        self._buffer = b""
        self._problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def send(self, records: Sequence[Record], texts: Sequence[Texts]) -> asyncio.Future[list[str]]:
        """Send a batch; the future gets its answer, or what became of the process instead."""
        batch = self._encoder.encode(records, texts)
        answer: asyncio.Future[list[str]] = self._loop.create_future()
        self._waiting.append(answer)
        if self._alarm is None:
            self._alarm = self._loop.call_later(ANSWER_S, self._give_up)
        self._transport.writelines([SIZE.pack(sum(map(len, batch))), *batch])
        return answer

    def ahead(self, request: bytes, *, scenario: str, session: str | None, dialect: str) -> bytes | Ahead:
        """Send a request before its record; nothing comes back."""
        sent = self._encoder.ahead(request, scenario=scenario, session=session, dialect=dialect)
        if sent is None:
            return request
        ahead, pieces = sent
        self._transport.writelines([SIZE.pack(sum(map(len, pieces)) | AHEAD), *pieces])
        return ahead

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= SIZE.size:
            (size,) = SIZE.unpack_from(self._buffer)
            end = SIZE.size + size
            if len(self._buffer) < end:
                return
            found, self._buffer = orjson.loads(self._buffer[SIZE.size : end]), self._buffer[end:]
            self._answer(found)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        if self._alarm is not None:
            self._alarm.cancel()
        problem = self._problem or f"the process that stores records ended ({error or 'its socket was closed'})"
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(StorageError(problem))
        self._waiting.clear()
        self._closed.set_result(None)

    async def aclose(self) -> None:
        """Close it, and wait until all who waited are told."""
        self._transport.write_eof()
        await self._closed

    def _answer(self, found: dict[str, Any]) -> None:
        answer = self._waiting.popleft()
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_later(ANSWER_S, self._give_up) if self._waiting else None
        if answer.done():  # whoever waited stopped
            return
        if "failed" in found:
            answer.set_exception(StorageError(found["failed"]))
        else:
            answer.set_result(found["problems"])

    def _give_up(self) -> None:
        """End a process that does not answer: its batches fail, and the next one starts another."""
        self.ended = True
        self._problem = f"the process that stores records did not answer within {ANSWER_S:g} s"
        self.process.kill()
        self._transport.abort()


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
