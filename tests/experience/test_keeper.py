"""The process that stores records: it answers only for what is on disk, and its death loses nothing that was acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
import uvloop

from reef.errors import StorageError
from reef.experience import committer, database, ids, jsontext
from reef.experience.committer import Keeper
from reef.experience.framing import Ahead, Decoder, Encoder, Texts
from reef.experience.store import ExperienceStore
from reef.experience.writer import Writer
from reef.types import End, Origin, Record, TokenTrace


def record(content: str) -> Record:
    return Record(
        id=ids.receipt(),
        scenario="s",
        session="run",
        release=3,
        origin=Origin.TRIAL,
        dialect="chat",
        upstream="u",
        model="m",
        end=End.TRUNCATED,
        status=200,
        streamed=True,
        request={"b": 1, "messages": [{"role": "user", "content": content}], "a": [1.5, None]},
        response={"choices": [{"message": {"role": "assistant", "content": "yes"}}]},
        usage={},
        started_at=1.25,
        first_byte_ms=None,
        duration_ms=1.0,
        error="it broke",
    )


@pytest.fixture
def engine(database_url: str) -> sa.Engine:
    engine = database.connect(database_url)
    database.create_tables(engine)
    return engine


def crossed(records: list[Record], texts: Sequence[Texts] = ()) -> list[Record | str]:
    """What arrives, the requests that came as texts parsed."""
    found = Decoder().decode(b"".join(Encoder().encode(records, texts)))
    return [
        item if isinstance(item, str) else item[0] if item[1] is None else item[0]._replace(request=jsontext.loads(item[1].rope.whole()))
        for item in found
    ]


def url(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


@pytest.mark.parametrize("text", [None, b'{"model": "m"}'])
def test_what_orjson_does_not_write_crosses_beside_what_has_its_text(text: bytes | None) -> None:
    sent = record("a lone surrogate \ud83e")._replace(response={"content": "\ud83e"}, tokens=TokenTrace((1, 2), (3,), (-0.5,)))
    assert crossed([sent], [(text, None)]) == [sent._replace(request={"model": "m"}) if text else sent]


@pytest.mark.parametrize("content", ["plain é 🪸", "a lone surrogate \ud83e", '"quoted" \\ \x00'])
def test_records_cross_to_it_unchanged(content: str) -> None:
    sent = record(content)
    assert crossed([sent]) == [sent]


def test_a_record_crosses_as_the_text_it_was_read_from() -> None:
    sent = record("é 🪸")
    texts = [(b' {"model": "m",\n "messages": []} ', None)]
    assert crossed([sent], texts) == [sent._replace(request={"model": "m", "messages": []})]


def test_one_that_cannot_be_read_again_takes_no_other_down(engine: sa.Engine) -> None:
    good, bad, fine = record("good"), record("bad"), record("fine")
    none = (None, None)

    async def run() -> list[str]:
        keeper = Keeper(url(engine))
        try:
            return await keeper.commit([good, bad, fine], [none, (b"{", None), none])
        finally:
            await keeper.aclose()

    first, second, third = asyncio.run(run())
    assert (first, third) == ("", "")
    assert "cannot be read" in second
    store = ExperienceStore(engine)
    assert [store.record(item.id) for item in (good, fine)] == [good, fine]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_text_that_only_the_standard_library_reads_crosses_too(encoding: str) -> None:
    sent = record("é 🪸")
    assert crossed([sent], [(json.dumps(sent.request, ensure_ascii=False).encode(encoding), None)]) == [sent]


def test_nesting_that_nothing_can_write_is_told_of_its_record_alone() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    good = record("good")
    found = crossed([record("deep")._replace(response=deep), good])
    assert isinstance(found[0], str)
    assert found[1] == good


def test_what_it_acknowledges_is_stored(engine: sa.Engine) -> None:
    sent = [record(str(number)) for number in range(50)]

    async def run() -> None:
        writer = Writer(engine, storing=Keeper(url(engine)))
        writer.start()
        await asyncio.gather(*(writer.record(item) for item in sent))
        await writer.aclose()

    asyncio.run(run())
    store = ExperienceStore(engine)
    for item in sent:
        assert store.record(item.id) == item


def test_one_bad_record_is_told_alone(engine: sa.Engine) -> None:
    good, other = record("good"), record("other")

    async def run() -> list[str]:
        keeper = Keeper(url(engine))
        try:
            return await keeper.commit([good, other._replace(id=good.id), record("fine")])
        finally:
            await keeper.aclose()

    assert [bool(problem) for problem in asyncio.run(run())] == [False, True, False]
    assert ExperienceStore(engine).counts()["records"] == 2


def test_when_it_is_killed_those_who_wait_are_told_and_the_next_batch_starts_it_again(engine: sa.Engine) -> None:
    async def run() -> None:
        keeper = Keeper(url(engine))
        await keeper.commit([record("first")])
        assert keeper.process is not None
        os.kill(keeper.process.pid, signal.SIGSTOP)  # so that the batch is surely under way when it dies
        waiting = keeper.commit([record("lost")])
        await asyncio.sleep(0)
        os.kill(keeper.process.pid, signal.SIGKILL)
        with pytest.raises(StorageError, match="ended"):
            await waiting
        assert await keeper.commit([record("second")]) == [""]
        await keeper.aclose()

    asyncio.run(run())
    assert ExperienceStore(engine).counts()["records"] == 2


def test_batches_under_way_together_are_stored_in_their_order(engine: sa.Engine) -> None:
    sent = [record(str(number)) for number in range(20)]

    async def run() -> None:
        keeper = Keeper(url(engine))
        await asyncio.gather(*(keeper.commit([item]) for item in sent))
        await keeper.aclose()

    asyncio.run(run())
    assert [item.id for item in ExperienceStore(engine).records("s")] == [item.id for item in sent]


def test_a_request_that_was_sent_ahead_is_stored_with_its_record_and_after_a_death_as_well(engine: sa.Engine) -> None:
    sent = [record(f"{number}: {'long ' * 9999}") for number in range(4)]
    texts = [jsontext.dumps(item.request) for item in sent]

    async def run() -> None:
        keeper = Keeper(url(engine))
        for number, (item, text) in enumerate(zip(sent, texts, strict=True)):
            ahead = keeper.ahead(text, scenario=item.scenario, session=item.session, dialect=item.dialect)
            assert isinstance(ahead, Ahead) == (number > 0)  # the first batch starts it
            if number == 2:
                assert keeper.process is not None
                keeper.process.kill()
                await asyncio.to_thread(keeper.process.wait)
                while not keeper._connection or not keeper._connection.ended:
                    await asyncio.sleep(0.01)
            assert await keeper.commit([item._replace(request=None)], [(ahead, None)]) == [""]
        await keeper.aclose()

    asyncio.run(run())
    store = ExperienceStore(engine)
    assert [store.record(item.id).request for item in sent] == [item.request for item in sent]


def test_it_ends_with_its_gateway(engine: sa.Engine) -> None:
    async def run() -> int | None:
        keeper = Keeper(url(engine))
        await keeper.commit([record("first")])
        process = keeper.process
        assert process is not None
        await keeper.aclose()
        return process.poll()

    assert asyncio.run(run()) == 0


def test_deaths_amid_many_batches_leave_nobody_waiting_and_what_was_acknowledged_stored(engine: sa.Engine) -> None:
    acknowledged: list[str] = []

    async def send(keeper: Keeper, count: int) -> None:
        for _ in range(count):
            item = record("x")
            try:
                assert await keeper.commit([item]) == [""]
                acknowledged.append(item.id)
            except StorageError:
                pass

    async def run() -> None:
        keeper = Keeper(url(engine))
        async with asyncio.timeout(60):
            for _ in range(3):
                senders = [asyncio.create_task(send(keeper, 20)) for _ in range(4)]
                while len(acknowledged) % 80 < 5 and not all(sender.done() for sender in senders):
                    await asyncio.sleep(0)
                if keeper.process is not None:
                    os.kill(keeper.process.pid, signal.SIGKILL)
                await asyncio.gather(*senders)
            assert await keeper.commit([record("last")]) == [""]
            await keeper.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    stored = {item.id for item in ExperienceStore(engine).records("s", limit=1000)}
    assert acknowledged
    assert set(acknowledged) <= stored


def test_one_that_does_not_answer_is_ended_and_its_batch_fails(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        keeper = Keeper(url(engine))
        await keeper.commit([record("first")])
        assert keeper.process is not None
        os.kill(keeper.process.pid, signal.SIGSTOP)
        monkeypatch.setattr(committer, "ANSWER_S", 0.2)
        with pytest.raises(StorageError, match=r"did not answer"):
            await keeper.commit([record("lost")])
        monkeypatch.setattr(committer, "ANSWER_S", 60.0)
        assert await keeper.commit([record("second")]) == [""]
        await keeper.aclose()

    asyncio.run(run())
