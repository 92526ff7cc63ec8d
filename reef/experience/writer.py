"""The one writer of experience: callers on an event loop, a thread that commits.

All that waits is committed in one transaction with one fsync (group commit), and the loop hands it to the thread as one batch: a switch
between threads that want the interpreter's lock costs as much as storing a record. Nothing is ever dropped: when the bound of waiting
jobs is reached, callers wait for a place.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
import structlog

from reef.errors import ReefError, StorageError
from reef.experience import reports, statements
from reef.experience.database import write
from reef.experience.rows import Dismantler
from reef.types import Record, Report

log = structlog.get_logger()

MAX_WAITING = 4096
"""Jobs accepted before callers have to wait for a place."""
MAX_BATCH = 512
GATHER_S = 0.002
"""Under load, the time between two hand-overs. A commit costs about half a millisecond whatever it carries; 2 ms of gathering make one
of ten. A caller that is alone never waits for others."""
CLOSE_S = 30.0


@dataclass(slots=True)
class _Job:
    """Something to store, and the caller that waits for it.

    ``work`` is a record, or a function that writes inside the batch's transaction and returns what its caller gets.
    """

    work: Record | Callable[[sa.Connection], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: ReefError | None = None


class Writer:
    """Appends records, reports and sessions. It belongs to the event loop that calls it.

    Args:
        engine: the database; its tables exist.
        max_waiting: the bound of the queue.
    """

    def __init__(self, engine: sa.Engine, *, max_waiting: int = MAX_WAITING) -> None:
        self._engine = write(engine)
        self._dismantler = Dismantler()
        self._inserts = statements.inserts(engine)
        self._places = asyncio.Semaphore(max_waiting)
        self._pending: list[_Job] = []
        self._under_way = False
        """A batch is with the thread, or about to be: the next goes when it is back."""
        self._handed_over_at = 0.0
        self._last_size = 0
        self._batches: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="experience-writer", daemon=True)
        self._connection: sa.Connection | None = None
        self._closed = False
        self.last_error = ""
        """Why the last batch could not be stored; empty once one could again."""

    @property
    def waiting(self) -> int:
        """Jobs that wait to be handed over."""
        return len(self._pending)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def aclose(self) -> None:
        """Store everything that waits, then end the thread."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._under_way and self._thread.is_alive():
                    await asyncio.sleep(0.001)
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_S)

    async def record(self, record: Record) -> None:
        """Append one exchange; returns once it is on disk. A caller that stops waiting has its record stored all the same.

        Raises:
            StorageError: it could not be stored.
        """
        await self._submit(record)

    async def report(self, draft: reports.ReportDraft) -> tuple[Report, bool]:
        """Append a report.

        Returns:
            The report, and whether it is new: the same id with the same content gives the report that is there.

        Raises:
            Conflict: the id is there with other content.
            NotFound: a receipt or session that the scenario does not have.
            StorageError: it could not be stored.
        """
        return await self._submit(lambda tx: reports.insert(tx, draft))

    async def session(self, scenario: str, session: str, *, adapter: str, release: int | None) -> None:
        """Register an agent run; a second call for the same one updates it.

        Raises:
            StorageError: it could not be stored.
        """
        await self._submit(lambda tx: statements.upsert_session(tx, scenario=scenario, session=session, adapter=adapter, release=release))

    async def _submit(self, work: Record | Callable[[sa.Connection], Any]) -> Any:
        if self._closed:
            raise StorageError("the store is closed", hint="The service is stopping; send it again after the restart.")
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future())
        self._pending.append(job)
        if not self._under_way:
            self._under_way = True
            loop.call_soon(self._next_batch, loop)  # at the end of this turn of the loop: what else it brings goes along
        return await job.future

    def _next_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over what waits: now, or after some gathering where others are about to come."""
        early = self._handed_over_at + GATHER_S - time.monotonic()
        if early > 0 and (self._last_size > 1 or len(self._pending) > 1):
            loop.call_later(early, self._hand_over)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        batch, self._pending = self._pending[:MAX_BATCH], self._pending[MAX_BATCH:]
        self._handed_over_at = time.monotonic()
        self._last_size = len(batch)
        self._batches.put(batch)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._store(batch)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop = batch[0].future.get_loop()
                loop.call_soon_threadsafe(self._resolve, batch, loop)
        if self._connection is not None:
            self._connection.close()

    def _store(self, batch: Sequence[_Job]) -> None:
        """Commit a batch. A job that cannot be stored must not take its neighbours down, nor the thread."""
        try:
            self._commit(batch)
            self.last_error = ""
        except sa.exc.OperationalError as error:  # disk full, locked beyond the time-out, I/O error: it is the same for every job
            self._fail(batch, error)
        except Exception as error:  # noqa: BLE001 - the thread must live, and every waiting caller gets the error
            if len(batch) == 1:
                self._fail(batch, error)
                return
            for job in batch:
                self._store([job])

    def _commit(self, batch: Sequence[_Job]) -> None:
        rows = self._dismantler.rows([job.work for job in batch if isinstance(job.work, Record)])
        with self._transaction() as tx:
            self._inserts.run(tx, rows)
            for job in batch:
                job.error = None
                if not isinstance(job.work, Record):
                    try:
                        job.result = job.work(tx)
                    except ReefError as error:  # refused before it wrote anything
                        job.error = error
        self._dismantler.committed(rows)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """A transaction on the thread's own connection, which stays open from batch to batch until something goes wrong with it."""
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            with self._connection.begin():
                yield self._connection
        except BaseException:
            self._connection.close()
            self._connection = None
            raise

    def _fail(self, batch: Sequence[_Job], error: Exception) -> None:
        self.last_error = str(getattr(error, "orig", None) or error)
        log.error("experience not stored", jobs=len(batch), reason=self.last_error)
        for job in batch:
            job.error = StorageError(
                f"the exchange could not be stored: {self.last_error}",
                hint="Free disk space or mend the database; storing resumes by itself. `reef status` shows the state of the writer.",
            )

    def _resolve(self, batch: Sequence[_Job], loop: asyncio.AbstractEventLoop) -> None:
        """Wake the callers of a batch, and see to the next."""
        for job in batch:
            self._places.release()
            if job.future.done():  # its caller stopped waiting
                continue
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)
        if self._pending:
            self._next_batch(loop)
        else:
            self._under_way = False
