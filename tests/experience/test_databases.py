"""Experience is kept alike on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from reef.errors import ConfigError, Conflict, NotFound
from reef.experience import database, ids
from reef.experience.reports import ReportDraft
from reef.experience.store import ExperienceStore
from reef.experience.writer import Writer
from reef.types import End, Origin, Record


@pytest.fixture
def engine(database_url: str) -> sa.Engine:
    engine = database.connect(database_url)
    database.create_tables(engine)
    return engine


def writing(engine: sa.Engine, work: Callable[[Writer], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        writer = Writer(engine)
        writer.start()
        try:
            return await work(writer)
        finally:
            await writer.aclose()

    return asyncio.run(run())


def exchange(turns: int) -> Record:
    messages = [{"role": ("user", "assistant")[turn % 2], "content": f"turn {turn} \x7f é 🪸 \\u0000"} for turn in range(turns)]
    return Record(
        id=ids.receipt(),
        scenario="default",
        session="run",
        release=1,
        origin=Origin.USER,
        dialect="chat",
        upstream="u",
        model="m",
        end=End.COMPLETE,
        status=200,
        streamed=False,
        request={"stream": False, "messages": messages, "model": "m"},
        response={"id": f"r{turns}", "choices": [{"index": 0, "message": {"role": "assistant", "content": f"answer {turns}"}}]},
        usage={"prompt_tokens": turns},
        started_at=time.time(),
        first_byte_ms=None,
        duration_ms=1.5,
    )


def test_records_are_given_back_as_they_were(engine: sa.Engine) -> None:
    sent = [exchange(turns) for turns in (1, 3, 5, 7)]

    async def work(writer: Writer) -> None:
        await asyncio.gather(*(writer.record(record) for record in sent))

    writing(engine, work)
    store = ExperienceStore(engine)
    for record in sent:
        found = store.record(record.id)
        assert orjson.dumps((found.request, found.response)) == orjson.dumps((record.request, record.response))
    assert {record.id for record in store.session_records("default", "run")} == {record.id for record in sent}
    assert len(store.records("default", newest=True, limit=2)) == 2


def test_reports_are_idempotent_and_refuse_unknown_receipts(engine: sa.Engine) -> None:
    record = exchange(1)

    async def work(writer: Writer) -> None:
        await writer.record(record)
        await writer.session("default", "run", adapter="pi", release=1)
        await writer.session("default", "run", adapter="pi", release=2)
        draft = ReportDraft(scenario="default", id="rep", score=0.5, feedback={"b": 1, "a": 2}, references=(record.id,))
        assert (await writer.report(draft))[1]
        assert not (await writer.report(draft))[1]
        with pytest.raises(Conflict):
            await writer.report(ReportDraft(scenario="default", id="rep", score=0.6, references=(record.id,)))
        with pytest.raises(NotFound, match="rec_missing"):
            await writer.report(ReportDraft(scenario="default", references=("rec_missing",)))
        quoted, _ = await writer.report(ReportDraft(scenario="default", session="run", score=1.0))
        assert quoted.references == (record.id,)

    writing(engine, work)
    store = ExperienceStore(engine)
    assert [report.score for report in store.unconsumed_reports("default", "cordis")] == [0.5, 1.0]
    assert store.newest_release("rep") == 1


def test_another_kind_of_database_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match="mysql is not supported") as refusal:
        database.connect("mysql://host/db")
    assert "postgresql://" in refusal.value.hint
    with pytest.raises(ConfigError, match="not a database URL"):
        database.connect("nonsense")
