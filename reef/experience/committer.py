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
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._waiting: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._listener: asyncio.Task[None] | None = None

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
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        try:
            if self._streams is None:
                await self._connect()
            assert self._streams is not None
            self._waiting.append(answer)
            self._streams[1].write(frame(encode(records)))
        except OSError as error:
            raise StorageError(f"the process that stores records cannot be reached ({error})") from error
        found = await answer
        if "failed" in found:
            raise StorageError(found["failed"])
        return found["problems"]

    async def aclose(self) -> None:
        """End the process: it stores what it has, then sees the end of its socket."""
        if self._streams is not None:
            self._streams[1].close()
        if self._listener is not None:
            await self._listener
        elif self._socket is not None:
            self._socket.close()
        if self.process is not None:
            await asyncio.to_thread(_reap, self.process)
            self.process = None

    async def _connect(self) -> None:
        if self._socket is None:
            self.start()
        reader, writer = await asyncio.open_connection(sock=self._socket)
        self._streams, self._socket = (reader, writer), None
        self._listener = asyncio.create_task(self._listen(reader, writer))

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers come in the order of the batches. At the end of the socket whoever still waits is told."""
        problem = "it ended"
        try:
            while True:
                (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
                found = orjson.loads(await reader.readexactly(size))
                if not (future := self._waiting.popleft()).done():
                    future.set_result(found)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            problem = str(error)
        self._streams = None
        writer.close()
        process, self.process = self.process, None
        if process is not None:
            await asyncio.to_thread(_reap, process)
        for future in self._waiting:
            if not future.done():
                future.set_result({"failed": f"the process that stores records ended ({problem})"})
        self._waiting.clear()


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
