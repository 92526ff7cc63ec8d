"""Storing exchanges: :class:`Committer` does it here and now, :class:`Keeper` has it done by a process of its own.

To take messages apart, hash, compress and insert them holds the interpreter's lock about as long as serving does. In a thread of the
gateway that is time taken from its clients; in a process beside it, it is the time of another core.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Protocol

import orjson
import sqlalchemy as sa

from reef.errors import StorageError
from reef.experience import database, jsontext, statements
from reef.experience.rows import Dismantler
from reef.types import End, Origin, Record

SIZE = struct.Struct("!Q")
"""What stands before each message between a gateway and its keeper."""
STOP_S = 30.0
ANSWER_S = 60.0
"""Bound on one batch; longer than the 30 s a locked SQLite is waited for."""


class Storing(Protocol):
    """Stores exchanges, for one event loop. Batches are stored in the order they were handed in; the next need not wait for the last."""

    async def commit(self, records: Sequence[Record]) -> list[str]:
        """Store exchanges durably; one string for each: empty, or why just this one could not be stored.

        Raises:
            StorageError: nothing could be stored, for a reason that has to do with none of them.
        """
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
        self._engine = database.write(engine)
        self._dismantler = Dismantler(redact=redact)
        self._inserts = statements.inserts(engine)
        self._connection: sa.Connection | None = None

    def commit(self, records: Sequence[Record]) -> list[str]:
        """See :meth:`Storing.commit`, without waiting for others. A record that cannot be stored does not take its neighbours down."""
        try:
            self._commit(records)
        except sa.exc.OperationalError as error:  # disk full, locked beyond the time-out, I/O error: it is the same for all of them
            raise StorageError(str(error.orig or error)) from error
        except Exception as error:  # noqa: BLE001 - told to the one caller whose record it was
            if len(records) == 1:
                return [f"{type(error).__name__}: {error}"]
            return [problem for record in records for problem in self.commit([record])]
        return [""] * len(records)

    def close(self) -> None:
        """Close the connection; the next batch opens one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _commit(self, records: Sequence[Record]) -> None:
        rows = self._dismantler.rows(records)
        with self._transaction() as tx:
            self._inserts.run(tx, rows)
        self._dismantler.committed(rows)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """A transaction on a connection that stays open from batch to batch until something goes wrong with it."""
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            with self._connection.begin():
                yield self._connection
        except BaseException:
            self.close()
            raise


class InThread:
    """A :class:`Committer` on a thread of this process.

    Args:
        engine: the database; its tables exist.
        redact: take secrets out of what is stored.
    """

    def __init__(self, engine: sa.Engine, *, redact: bool = True) -> None:
        self._committer = Committer(engine, redact=redact)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="committer")

    async def commit(self, records: Sequence[Record]) -> list[str]:
        """See :meth:`Storing.commit`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._committer.commit, records)

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
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
        # by this way, not by arguments or environment, which others may read: the URL may hold a password
        self._socket.sendall(frame(orjson.dumps(self._hello)))

    async def commit(self, records: Sequence[Record]) -> list[str]:
        """See :meth:`Storing.commit`."""
        try:
            async with self._connecting:  # lets batches through in their order, and one of them connects
                connection = await self._connected()
                answer = connection.send(encode(records))
        except OSError as error:
            raise StorageError(f"the process that stores records cannot be reached ({error})") from error
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await answer
        except TimeoutError:
            connection.give_up()
            raise StorageError(f"the process that stores records did not answer within {ANSWER_S:g} s") from None
        if "failed" in found:
            raise StorageError(found["failed"])
        return found["problems"]

    async def aclose(self) -> None:
        """End the process: it stores what it has, then sees the end of its socket."""
        if self._connection is not None:
            await self._connection.aclose()
        elif self._socket is not None:
            self._socket.close()
        if self.process is not None:
            await asyncio.to_thread(_reap, self.process)

    async def _connected(self) -> _Connection:
        if self._connection is None or self._connection.ended:
            if self._socket is None:
                self.start()
            assert self.process is not None
            reader, writer = await asyncio.open_connection(sock=self._socket)
            self._connection, self._socket = _Connection(reader, writer, self.process), None
        return self._connection


class _Connection:
    """To one process of a :class:`Keeper`, until it ends. Answers come in the order of the batches."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.ended = False
        self._writer = writer
        self._waiting: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._listener = asyncio.create_task(self._listen(reader))

    def send(self, batch: bytes) -> asyncio.Future[dict[str, Any]]:
        """Send a batch; the future gets its answer, or what became of the process instead."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._writer.write(frame(batch))
        return answer

    def give_up(self) -> None:
        """End a process that does not answer: its batches fail, and the next one starts another."""
        self.ended = True
        self.process.kill()

    async def aclose(self) -> None:
        """Close it, and wait until all who waited are told."""
        self._writer.close()
        await self._listener

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        problem = ""
        try:
            while True:
                (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
                found = orjson.loads(await reader.readexactly(size))
                if not (answer := self._waiting.popleft()).done():
                    answer.set_result(found)
        except (OSError, EOFError, ValueError, IndexError) as error:
            problem = str(error)
        self.ended = True
        self._writer.close()
        for answer in self._waiting:
            if not answer.done():
                answer.set_result({"failed": f"the process that stores records ended ({problem})"})
        await asyncio.to_thread(_reap, self.process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def encode(records: Sequence[Record]) -> bytes:
    """Records as JSON text."""
    try:
        return orjson.dumps(records)
    except TypeError:  # something orjson refuses and clients send all the same
        return jsontext.dumps([asdict(record) for record in records])


def decode(text: bytes) -> list[Record]:
    """The records :func:`encode` wrote."""
    return [Record(**{**found, "origin": Origin(found["origin"]), "end": End(found["end"])}) for found in jsontext.loads(text)]


def frame(data: bytes) -> bytes:
    """One message as it travels: its size, then itself."""
    return SIZE.pack(len(data)) + data
