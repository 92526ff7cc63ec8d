"""The one writer of experience: callers on an event loop, and whatever stores what they hand in.

What waits is stored in batches, each with one fsync (group commit). Nothing is ever dropped: when the
bound of waiting jobs is reached, callers wait for a place.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
import structlog

from reef import failpoints
from reef.errors import ReefError, StorageError
from reef.experience import reports, statements
from reef.experience.committer import InThread, Storing
from reef.experience.database import write
from reef.experience.framing import Ahead, Texts
from reef.types import Record, Report

log = structlog.get_logger()

MAX_WAITING = 4096
"""Jobs accepted before callers have to wait for a place."""
MAX_BATCH = 512
FEW = 8
"""So many are enough to be handed over, and up to so many are at once; of more that wait, half. With all of them in one batch the gateway
has nothing to do while they are stored, and then all their answers to send at once while nothing is stored. A slow disk still makes large
batches."""
UNDER_WAY = 3
"""Batches that may be under way at once: while one is stored the next is there already. Beside one batch of all that waits, on two cores
with 32 connections, this made 22 % more requests of 1 kB and 3 % more of 10 kB (medians of five interleaved rounds)."""
GATHER_S = 0.001
"""Under load, so long after a hand-over fewer are handed over, too: a commit takes a fifth of a millisecond of the processor whatever it
carries. Beside half as long, also for those that are enough, this made 10 to 20 % more requests of 100 kB, and no clear change at 1 and
10 kB (medians of five to eight interleaved rounds, three times). A caller that is alone never waits for others."""
CLOSE_S = 30.0


@dataclass(slots=True)
class _Job:
    """Something to store, and the caller that waits for it.

    ``work`` is a record, or a function that writes in a transaction of its own and returns what its caller gets.
    """

    work: Record | Callable[[sa.Connection], Any]
    future: asyncio.Future[Any]
    texts: Texts = (None, None)
    """Of a record."""


class Writer:
    """Appends records, reports and sessions. It belongs to the event loop that calls it.

    Args:
        engine: the database; its tables exist.
        storing: what stores exchanges; by default a thread of this process.
        max_waiting: the bound of jobs that wait.
    """

    def __init__(self, engine: sa.Engine, *, storing: Storing | None = None, max_waiting: int = MAX_WAITING) -> None:
        self._engine = write(engine)
        self._storing = storing or InThread(engine)
        self._places = asyncio.Semaphore(max_waiting)
        self._pending: list[_Job] = []
        self._batches: list[asyncio.Future[Any]] = []
        """Under way, oldest first."""
        self._alarm: asyncio.TimerHandle | asyncio.Handle | None = None
        self._handed_over_at = 0.0
        self._last_size = 0
        self._others = ThreadPoolExecutor(1, thread_name_prefix="experience-writer")
        self._started = False
        self._closed = False
        self.last_error = ""
        """Why the last batch could not be stored; empty once one could again."""

    @property
    def waiting(self) -> int:
        """Jobs that wait to be handed over."""
        return len(self._pending)

    @property
    def alive(self) -> bool:
        """Whether it takes records."""
        return self._started and not self._closed

    def start(self) -> None:
        """Begin to store."""
        self._started = True
        self._see_to_next()

    async def aclose(self) -> None:
        """Store everything that waits, then let go of threads, processes and connections."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._batches or self._pending:
                    self._hand_over()
                    await asyncio.wait(self._batches)
        await self._storing.aclose()
        await asyncio.to_thread(self._others.shutdown)

    def ahead(self, request: bytes, *, scenario: str, session: str | None, dialect: str) -> bytes | Ahead:
        """Have the request of an exchange read while that is under way, where nothing else is to be done: then its end is waited for less.

        Args:
            request: the JSON text that it was read from.

        Returns:
            What to give to :meth:`record` as its text.
        """
        if self._batches or self._pending or not self.alive:
            return request
        return self._storing.ahead(request, scenario=scenario, session=session, dialect=dialect)

    async def record(self, record: Record, *, request: bytes | Ahead | None = None, response: bytes | None = None) -> None:
        """Append one exchange; returns once it is on disk. A caller that stops waiting has its record stored all the same.

        Args:
            record: the exchange.
            request: the JSON text that its request was read from, or what became of it ahead; it needs not be written again.
            response: the same of its response.

        Raises:
            StorageError: it could not be stored.
        """
        await self._submit(record, texts=(request, response))

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

    async def _submit(self, work: Record | Callable[[sa.Connection], Any], *, texts: Texts = (None, None)) -> Any:
        if self._closed:
            raise StorageError("the store is closed", hint="The service is stopping; send it again after the restart.")
        await self._places.acquire()
        job = _Job(work, asyncio.get_running_loop().create_future(), texts)
        self._pending.append(job)
        self._see_to_next()
        return await job.future

    def _see_to_next(self) -> None:
        """Hand over what waits: at the end of this turn of the loop, or after some gathering where others are about to come."""
        if not self._started or not self._pending or len(self._batches) >= UNDER_WAY:
            return
        if self._alarm is not None:
            if len(self._pending) != FEW:
                return
            self._alarm.cancel()  # enough have come
        loop = asyncio.get_running_loop()
        early = self._handed_over_at + GATHER_S - time.monotonic()
        if early > 0 and len(self._pending) < FEW and (self._last_size > 1 or len(self._pending) > 1):
            self._alarm = loop.call_later(early, self._hand_over)
        else:
            self._alarm = loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        size = min(max(FEW, len(self._pending) // 2), MAX_BATCH)
        batch, self._pending = self._pending[:size], self._pending[size:]
        if not batch:
            return
        self._handed_over_at = time.monotonic()
        self._last_size = len(batch)
        under_way: asyncio.Future[Any]
        if all(isinstance(job.work, Record) for job in batch):  # nearly always: it needs no task
            under_way = self._store(batch)
        else:
            under_way = asyncio.create_task(self._store_all(batch, tuple(self._batches)))
        self._batches.append(under_way)
        under_way.add_done_callback(partial(self._came_back, len(batch)))

    def _came_back(self, size: int, batch: asyncio.Future[Any]) -> None:
        self._batches.remove(batch)
        for _ in range(size):
            self._places.release()
        self._see_to_next()

    def _store(self, jobs: Sequence[_Job]) -> asyncio.Future[list[str]]:
        """Store records. Whatever goes wrong, every caller is told."""
        try:
            records = [job.work for job in jobs if isinstance(job.work, Record)]
            stored = self._storing.commit(records, [job.texts for job in jobs])
        except Exception as error:  # noqa: BLE001 - told to those whose records they are
            stored = asyncio.get_running_loop().create_future()
            stored.set_exception(error)
        stored.add_done_callback(partial(self._tell, jobs))
        return stored

    def _tell(self, jobs: Sequence[_Job], stored: asyncio.Future[list[str]]) -> None:
        if (error := stored.exception()) is not None:
            self._fail(jobs, error)
            return
        self.last_error = ""
        failpoints.reach("experience.told")
        for job, problem in zip(jobs, stored.result(), strict=True):
            self._answer(job, error=_refusal(problem) if problem else None)

    def _fail(self, jobs: Sequence[_Job], error: BaseException) -> None:
        self.last_error = str(getattr(error, "orig", None) or error)
        for job in jobs:
            self._answer(job, error=_refusal(self.last_error))
        log.error("experience not stored", jobs=len(jobs), reason=self.last_error, exc_info=error)  # last: on a full disk it may fail

    async def _store_all(self, batch: Sequence[_Job], before: Sequence[asyncio.Future[Any]]) -> None:
        """Store a batch that is not of records alone, after those before it: a report may quote a record of theirs."""
        records = [job for job in batch if isinstance(job.work, Record)]
        others = [job for job in batch if not isinstance(job.work, Record)]
        waited_for = [*before, self._store(records)] if records else before
        try:
            if waited_for:
                await asyncio.wait(waited_for)
            await asyncio.get_running_loop().run_in_executor(self._others, self._run_others, others)
        except Exception as error:  # noqa: BLE001 - told to those who wait
            self._fail(others, error)

    def _run_others(self, jobs: Sequence[_Job]) -> None:
        """Reports and sessions: rare, so each in a transaction of its own, and on a thread."""
        for job in jobs:
            loop = job.future.get_loop()
            try:
                with self._engine.begin() as tx:
                    assert not isinstance(job.work, Record)
                    result = job.work(tx)
                failpoints.reach("other.committed")
            except ReefError as error:  # refused before it wrote anything
                loop.call_soon_threadsafe(partial(self._answer, job, error=error))
            else:
                loop.call_soon_threadsafe(partial(self._answer, job, result=result))

    def _answer(self, job: _Job, *, result: Any = None, error: ReefError | None = None) -> None:
        """Tell a caller, once."""
        if job.future.done():  # told already, or it stopped waiting
            return
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)


def _refusal(reason: str) -> StorageError:
    return StorageError(
        f"the exchange could not be stored: {reason}",
        hint="Free disk space or mend the database; storing resumes by itself. `reef status` shows the state of the writer.",
    )
