"""The writer: everything that waits in one commit, nothing dropped, and it recovers by itself."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from reef.errors import Conflict, NotFound, StorageError
from reef.experience import database, ids
from reef.experience import writer as writer_module
from reef.experience.reports import ReportDraft
from reef.experience.store import ExperienceStore
from reef.experience.writer import Writer
from reef.types import End, Origin, Record


def record(text: str) -> Record:
    return Record(
        id=ids.receipt(),
        scenario="s",
        session=None,
        release=None,
        origin=Origin.USER,
        dialect="chat",
        upstream="u",
        model="m",
        end=End.COMPLETE,
        status=200,
        streamed=False,
        request={"messages": [{"role": "user", "content": text}]},
        response=None,
        usage={},
        started_at=1.0,
        first_byte_ms=None,
        duration_ms=1.0,
    )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = database.connect(f"sqlite:///{tmp_path / 'reef.db'}")
    database.create_tables(engine)
    yield engine
    engine.dispose()


def commits(engine: sa.Engine) -> list[None]:
    """Grows by one with each commit from now on."""
    seen: list[None] = []
    sa.event.listen(engine, "commit", lambda _connection: seen.append(None))
    return seen


def test_all_that_waits_goes_into_few_commits(engine: sa.Engine) -> None:
    seen = commits(engine)

    async def run() -> None:
        writer = Writer(engine)
        writer.start()
        await asyncio.gather(*(writer.record(record(str(number))) for number in range(300)))
        await writer.aclose()

    asyncio.run(run())
    assert ExperienceStore(engine).counts()["records"] == 300
    assert len(seen) <= 3


def test_what_is_enough_for_a_batch_does_not_wait_for_more(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GATHER_S", 60.0)

    async def run() -> None:
        writer = Writer(engine)
        writer.start()
        await asyncio.gather(*(writer.record(record(str(number))) for number in range(2)))
        async with asyncio.timeout(30):
            await asyncio.gather(*(writer.record(record(str(number))) for number in range(writer_module.FEW)))
        waits = [asyncio.create_task(writer.record(record(str(number)))) for number in range(writer_module.FEW - 1)]
        await asyncio.wait(waits, timeout=0.2)
        assert not any(task.done() for task in waits)
        await writer.aclose()
        await asyncio.gather(*waits)

    asyncio.run(run())


def test_beyond_the_bound_callers_wait_and_nothing_is_dropped(engine: sa.Engine) -> None:
    async def run() -> None:
        writer = Writer(engine, max_waiting=2)
        tasks = [asyncio.create_task(writer.record(record(str(number)))) for number in range(10)]
        while writer.waiting < 2:
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        writer.start()
        await asyncio.gather(*tasks)
        await writer.aclose()

    asyncio.run(run())
    assert ExperienceStore(engine).counts()["records"] == 10


def test_closing_stores_what_waits_and_refuses_what_comes_after(engine: sa.Engine) -> None:
    async def run() -> None:
        writer = Writer(engine)
        writer.start()
        waiting = asyncio.create_task(writer.record(record("last")))
        await asyncio.sleep(0)
        await writer.aclose()
        await waiting
        with pytest.raises(StorageError):
            await writer.record(record("too late"))

    asyncio.run(run())
    assert ExperienceStore(engine).counts()["records"] == 1


def test_a_caller_that_stops_waiting_has_its_record_stored_all_the_same(engine: sa.Engine) -> None:
    async def run() -> None:
        writer = Writer(engine)
        gone = asyncio.create_task(writer.record(record("gone")))
        while not writer.waiting and not gone.done():
            await asyncio.sleep(0)
        gone.cancel()
        writer.start()
        await writer.record(record("next"))
        await writer.aclose()

    asyncio.run(run())
    assert ExperienceStore(engine).counts()["records"] == 2


def test_a_full_disk_fails_those_who_wait_and_storing_resumes_when_there_is_room(engine: sa.Engine) -> None:
    connections: list[sqlite3.Connection] = []
    sa.event.listen(engine, "checkout", lambda connection, *_: connections.append(connection))

    def allow(pages: int) -> None:
        for connection in connections:
            connection.execute(f"PRAGMA max_page_count={pages}")

    lost, kept = record(os.urandom(200_000).hex()), record("kept")

    async def run() -> None:
        writer = Writer(engine)
        writer.start()
        await writer.record(record("first"))
        allow(1)  # as many as there are: SQLite says "database or disk is full"
        with pytest.raises(StorageError, match="full"):
            await writer.record(lost)
        assert writer.last_error
        assert writer.alive
        allow(10_000)
        await writer.record(kept)
        await writer.record(kept._replace(id=ids.receipt()))
        assert not writer.last_error
        await writer.aclose()

    asyncio.run(run())
    store = ExperienceStore(engine)
    assert store.counts()["records"] == 3
    assert store.record(kept.id).request == kept.request
    with pytest.raises(NotFound):
        store.record(lost.id)


def test_a_record_that_cannot_be_stored_does_not_take_its_neighbours_down(engine: sa.Engine) -> None:
    good, same_id = record("good"), record("other")
    bad = same_id._replace(id=good.id)

    async def run() -> list[BaseException | None]:
        writer = Writer(engine)
        writer.start()
        results = await asyncio.gather(writer.record(good), writer.record(bad), writer.record(record("fine")), return_exceptions=True)
        await writer.aclose()
        return results

    results = asyncio.run(run())
    assert [type(result) for result in results] == [type(None), StorageError, type(None)]
    assert ExperienceStore(engine).counts()["records"] == 2


def test_reports_in_one_batch_see_each_other(engine: sa.Engine) -> None:
    quoted = record("quoted")

    async def run() -> list[object]:
        writer = Writer(engine)
        writer.start()
        draft = ReportDraft(scenario="s", references=(quoted.id,), score=0.0, id="mine")
        results = await asyncio.gather(
            writer.record(quoted),
            writer.report(draft),
            writer.report(draft),
            writer.report(replace(draft, score=1.0)),
            writer.report(replace(draft, id="", references=("rec_none",))),
            return_exceptions=True,
        )
        await writer.aclose()
        return list(results)

    _, first, second, other, unknown = asyncio.run(run())
    assert first[1] is True and second == (first[0], False)  # type: ignore[index]
    assert isinstance(other, Conflict)
    assert isinstance(unknown, NotFound)
