"""What is beyond its budget goes, in the right order; what stays can be read; and nobody who stores has to wait for it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from reef.errors import Conflict, Gone, StorageError
from reef.experience import database, ids, lines, reports, rows, schema, sweep, usage
from reef.experience.committer import Committer
from reef.experience.dropping import MOST_BYTES
from reef.experience.reserve import Reserve
from reef.experience.retention import Budget, Outcome, Policy, Retention
from reef.experience.store import ExperienceStore
from reef.experience.tombstones import EMPTIED
from reef.types import JSON, Origin, Record
from tests.experience.test_threads import exchange, turn
from tests.experience.test_transfer import elsewhere, given_out, take

DAY = 86400.0
SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123"


class Kept:
    """A database with a process that stores in it."""

    def __init__(self, url: str) -> None:
        self.engine = database.connect(url)
        database.create_tables(self.engine)
        self.store = ExperienceStore(self.engine)
        self.committer = Committer(self.engine)

    def add(self, *records: Record) -> Sequence[Record]:
        assert self.committer.commit(records) == [""] * len(records)
        return records

    def run(self, name: str, *, days: float, length: int = 3, size: int = 5000, **changes: Any) -> list[Record]:
        """A session that ended so long ago."""
        at = time.time() - days * DAY
        return list(self.add(*(item._replace(session=name, started_at=at, **changes) for item in grown(length, size))))

    def report(self, *records: Record, consumed: bool) -> str:
        with database.write(self.engine).begin() as tx:
            draft = reports.ReportDraft(scenario=records[0].scenario, references=tuple(record.id for record in records), score=0.0)
            made, _ = reports.insert(tx, draft)
            if consumed:
                tx.execute(schema.consumptions.insert().values(report=made.id, recipe="r", scenario=made.scenario, at=0.0))
        return made.id

    def keep(self, budget: Budget, *, grace_s: float = 3600.0, dry: bool = False, **scenarios: Budget) -> list[Outcome]:
        policy = Policy(default=budget, scenarios=scenarios, grace_s=grace_s)
        return Retention(self.engine, policy, wait=lambda seconds: None).run_all(dry=dry)

    def sessions(self, scenario: str = "s") -> set[str | None]:
        """Those that have content."""
        return {record.session for record in self.store.records(scenario, limit=1000)}

    def sums(self, scenario: str = "s") -> dict[str, int]:
        counting = usage.Usage(self.engine)
        counting.look()
        counting.look()  # PostgreSQL: what was given out at the look before
        return usage.sums(self.engine).get(scenario, {})

    def one(self, query: sa.Select[Any]) -> Any:
        with self.engine.connect() as tx:
            return tx.execute(query).scalar_one()

    def exactly(self) -> tuple[int, int]:
        """How many records have content, and how many bytes, counted here and now."""
        kept = schema.records.c.gone_at.is_(None)
        return (
            self.one(sa.select(sa.func.count()).select_from(schema.records).where(kept)),
            int(self.one(sa.select(sa.func.sum(sa.func.length(schema.records.c.delta))).where(kept)) or 0),
        )


def grown(length: int, size: int) -> list[Record]:
    history: list[JSON] = [turn("be brief", "system")]
    found = []
    for number in range(length):
        text = "".join(ids.receipt() for _ in range(1 + size // 32))[:size]
        history = [*history, turn(text)]
        found.append(exchange(history, f"done {number}"))
        history = [*history, turn(f"done {number}", "assistant")]
    return found


def same(found: Record, sent: Record) -> bool:
    return json.dumps([found.request, found.response]) == json.dumps([sent.request, sent.response])


@pytest.fixture
def kept(database_url: str) -> Kept:
    return Kept(database_url)


def test_nothing_goes_where_no_budget_is_given(kept: Kept) -> None:
    kept.run("old", days=1000)
    assert kept.keep(Budget()) == []
    assert kept.sessions() == {"old"}


def test_what_is_too_old_goes_session_by_session_and_scenarios_may_differ(kept: Kept) -> None:
    for scenario in ("s", "long"):
        kept.run("old", days=40, scenario=scenario)
        kept.run("young", days=20, scenario=scenario)
    begun_long_ago = kept.run("goes on", days=40, length=2)
    kept.add(exchange([*begun_long_ago[-1].request["messages"], turn("and now?")])._replace(session="goes on", started_at=time.time()))
    kept.keep(Budget(max_age_s=30 * DAY), long=Budget(max_age_s=60 * DAY))
    assert kept.sessions() == {"young", "goes on"}
    assert kept.sessions("long") == {"old", "young"}
    assert same(kept.store.record(begun_long_ago[0].id), begun_long_ago[0])


def test_consumed_sessions_go_first_and_those_that_wait_last_and_loudly(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = kept.run("waiting", days=9)
    unreported = kept.run("unreported", days=8)
    trial = kept.run("trial", days=2, origin=Origin.TRIAL)
    consumed = kept.run("consumed", days=1)
    kept.report(*waiting, consumed=False)
    kept.report(waiting[0], consumed=True)
    kept.report(*consumed, consumed=True)
    one = kept.exactly()[1] / 4
    left = [{"waiting", "unreported", "consumed"}, {"waiting", "unreported"}, {"waiting"}, set()]
    for parts, expected in zip((3.9, 2.9, 1.9, 0.1), left, strict=True):
        kept.keep(Budget(max_bytes=int(one * parts)))
        assert kept.sessions() == expected
        assert ("nothing was learned from" in capsys.readouterr().out) == (parts < 2)
    sums = kept.sums()
    assert (sums["dropped"], sums["dropped_unreported"], sums["dropped_waiting"]) == (12, len(unreported), len(waiting))
    assert sums["bytes"] == sums["records"] == 0
    assert len(trial) == 3


def test_a_budget_that_is_kept_costs_nothing_and_one_that_is_not_is_gone_below(kept: Kept) -> None:
    for number in range(10):
        kept.run(f"run {number}", days=10 - number, length=1, size=10_000)
    total = kept.exactly()[1]
    assert [outcome.records for outcome in kept.keep(Budget(max_bytes=total))] == [0]
    kept.keep(Budget(max_bytes=total - 1))
    records, size = kept.exactly()
    assert 0.75 * total < size <= 0.9 * total
    assert kept.sessions() == {f"run {number}" for number in range(10 - records, 10)}


def test_a_dry_run_says_what_would_go_and_changes_nothing(kept: Kept) -> None:
    kept.run("old", days=40)
    [told] = kept.keep(Budget(max_age_s=30 * DAY), s=Budget(max_age_s=30 * DAY), dry=True)
    assert (told.sessions, told.records, told.unreported) == (1, 3, 3)
    assert kept.sessions() == {"old"}
    [done] = kept.keep(Budget(max_age_s=30 * DAY), s=Budget(max_age_s=30 * DAY))
    assert (done.sessions, done.records, done.dropped_bytes) == (told.sessions, told.records, told.dropped_bytes)


def test_a_session_in_use_stays_whatever_the_budget(kept: Kept) -> None:
    kept.run("now", days=0)
    [outcome] = kept.keep(Budget(max_bytes=1), s=Budget(max_bytes=1))
    assert outcome.over
    assert kept.sessions() == {"now"}
    kept.keep(Budget(max_bytes=1), grace_s=-1, s=Budget(max_bytes=1))
    assert kept.sessions() == set()


def test_a_slim_row_stays_and_says_what_it_was(kept: Kept) -> None:
    sent = kept.run("old", days=40, usage={"prompt_tokens": 12, "completion_tokens": 5})
    report = kept.report(*sent, consumed=False)
    kept.sums()
    kept.keep(Budget(max_age_s=30 * DAY))
    with pytest.raises(Gone) as gone:
        kept.store.record(sent[1].id)
    told = gone.value.kept
    assert (told["session"], told["model"], told["end"], told["started_at"]) == ("old", "m", "complete", sent[1].started_at)
    assert (told["prompt_tokens"], told["completion_tokens"], told["release"]) == (12, 5, 1)
    assert len(told["content_digest"]) == 40
    assert told["content_digest"] in gone.value.message
    with kept.engine.connect() as tx:
        for row in tx.execute(sa.select(schema.records)).mappings():
            assert {name: row[name] for name in EMPTIED} == EMPTIED
    assert kept.store.report(report).references == tuple(record.id for record in sent)
    assert kept.store.newest_release(report) == 1
    kept.report(sent[0], consumed=False)
    assert kept.store.session_records("s", "old") == []
    with database.write(kept.engine).begin() as tx:
        later, _ = reports.insert(tx, reports.ReportDraft(scenario="s", session="old", score=1.0))
    assert len(later.references) == 3


def test_the_same_content_imported_again_is_known_to_have_been_here(kept: Kept) -> None:
    sent = kept.run("old", days=40)
    secret = exchange([turn(f"my key is {SECRET}")])._replace(session="old", started_at=sent[0].started_at)
    kept.add(secret)
    text = b"".join(lines.of_record(record) for record in (*sent, secret))
    kept.sums()
    kept.keep(Budget(max_age_s=30 * DAY))
    tally = take(kept.engine, text)
    assert (tally.stored["records"], tally.there["records"]) == (0, 4)
    for name, value in (("request", {"messages": [turn("other")]}), ("response", None), ("model", "other")):
        with pytest.raises(Conflict, match="is there with other"):
            take(kept.engine, lines.of_record(sent[1]._replace(**{name: value})))
    assert kept.sessions() == set()


def test_what_is_gone_is_exported_as_its_tombstone_and_reports_on_it_are_whole_elsewhere(kept: Kept, tmp_path: Path) -> None:
    first, gone, last = kept.run("first", days=9), kept.run("gone", days=40), kept.run("last", days=8)
    kept.report(first[0], gone[2], last[0], consumed=False)
    kept.report(*gone, consumed=False)
    before = given_out(kept.engine)
    kept.sums()
    kept.keep(Budget(max_age_s=30 * DAY))
    told = given_out(kept.engine)
    kinds = [json.loads(line)["kind"] for line in told.splitlines()]
    assert kinds == [*["record"] * 3, *["tombstone"] * 3, *["record"] * 3, *["report"] * 2]

    there = elsewhere(tmp_path)
    tally = take(there, told, scenario="s")
    assert (tally.stored, tally.gone) == ({"sessions": 0, "records": 9, "reports": 2}, 3)
    assert given_out(there) == told
    with pytest.raises(Gone, match="was dropped by retention"):
        ExperienceStore(there).record(gone[0].id)
    assert usage.sums(there)["s"]["dropped"] == 3
    again = take(there, told)
    assert (sum(again.stored.values()), again.gone, again.there) == (0, 0, {"sessions": 0, "records": 9, "reports": 2})
    assert take(there, before).there["records"] == 9  # with their content they are the same: what is gone stays gone
    assert given_out(there) == told


def test_a_tombstone_agrees_with_the_record_that_has_its_content_and_with_no_other(kept: Kept, tmp_path: Path) -> None:
    sent = kept.run("run", days=40)
    before = given_out(kept.engine)
    there = elsewhere(tmp_path)
    take(there, before)
    kept.sums()
    kept.keep(Budget(max_age_s=30 * DAY))
    told = given_out(kept.engine)
    assert (tally := take(there, told)).there["records"] == 3 and tally.gone == 0
    assert given_out(there) == before
    assert take(elsewhere(tmp_path), told + before).there["records"] == 3
    assert take(elsewhere(tmp_path), before + told).there["records"] == 3
    line = json.loads(told.splitlines()[0])
    for name, value in (("content_digest", "0" * 40), ("model", "other"), ("release", 7)):
        for store in (there, kept.engine):
            with pytest.raises(Conflict, match=f"record {sent[0].id} is there with other {'content' if 'digest' in name else name}"):
                take(store, [{**line, name: value}])


def test_who_remembers_a_session_that_is_gone_notices_and_stores_it_whole(kept: Kept) -> None:
    sent = kept.run("run", days=40)
    kept.sums()
    kept.keep(Budget(max_age_s=30 * DAY))
    goes_on = exchange([*sent[-1].request["messages"], turn("still there?")])._replace(session="run", started_at=time.time())
    beside = exchange([turn("something else")])._replace(session="beside")
    kept.add(beside, goes_on)
    assert same(kept.store.record(goes_on.id), goes_on)
    assert same(kept.store.record(beside.id), beside)
    assert kept.one(sa.select(schema.records.c.base).where(schema.records.c.id == goes_on.id)) is None


def test_a_found_session_that_is_gone_begins_anew(kept: Kept) -> None:
    first = exchange([turn("hello")])._replace(started_at=time.time() - 40 * DAY)
    kept.add(first)
    kept.sums()
    kept.keep(Budget(max_age_s=30 * DAY))
    history = [turn("hello"), first.response["choices"][0]["message"], turn("more")]
    again = exchange(history)
    kept.add(again)
    assert same(kept.store.record(again.id), again)


class Load(threading.Thread):
    """A process that stores, in some sessions in turn, what is too old by its clock."""

    def __init__(self, engine: sa.Engine, own: str) -> None:
        super().__init__(daemon=True)
        self.sent: list[Record] = []
        self.problems: list[str] = []
        self.stop = threading.Event()
        self._committer = Committer(engine)
        self._names = [f"{own} {number}" for number in range(25)] + [f"shared {number}" for number in range(25)]

    def run(self) -> None:
        histories: dict[str, list[JSON]] = {name: [turn("be brief", "system")] for name in self._names}
        while not self.stop.is_set() and not self.problems:
            for name, history in histories.items():
                history.append(turn(ids.receipt() * 10))
                item = exchange(history)._replace(session=name, started_at=time.time() - 40 * DAY)
                self.problems += filter(None, self._committer.commit([item]))
                self.sent.append(item)


def test_whatever_is_stored_while_sessions_go_is_whole_or_gone(kept: Kept) -> None:
    loads = [Load(kept.engine, f"own {place}") for place in range(2)]
    for load in loads:
        load.start()
    retention = Retention(kept.engine, Policy(default=Budget(max_age_s=30 * DAY)), wait=lambda seconds: None)
    until = time.monotonic() + 4
    dropped = 0
    while time.monotonic() < until:
        dropped += sum(outcome.records for outcome in retention.run_all())
    for load in loads:
        load.stop.set()
        load.join(30)
    assert [load.problems for load in loads] == [[], []]
    sent = {item.id: item for load in loads for item in load.sent}
    readable = {item.id for name in {item.session for item in sent.values()} for item in read(kept, str(name), sent)}
    for receipt in sent.keys() - readable:
        with pytest.raises(Gone):
            kept.store.record(receipt)
    assert len(sent) - len(readable) == dropped == kept.sums()["dropped"]
    assert dropped > 50
    assert len(readable) > 50


def read(kept: Kept, session: str, sent: Mapping[str, Record]) -> list[Record]:
    """What is left of a session, which is as it was sent."""
    found = kept.store.session_records("s", session)
    assert all(same(item, sent[item.id]) for item in found)
    return found


def blobs(kept: Kept) -> int:
    return kept.one(sa.select(sa.func.count()).select_from(schema.blobs))


def let_an_hour_pass(kept: Kept) -> None:
    with database.write(kept.engine).begin() as tx:
        tx.execute(schema.blobs.update().values(touched_at=schema.blobs.c.touched_at - sweep.UNTOUCHED_S - 1))


def swept(kept: Kept) -> int:
    return sweep.sweep(kept.engine, wait=lambda seconds: None)


def test_blobs_that_nothing_uses_are_collected_and_shared_ones_stay(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    old = [item._replace(request={**item.request, "tools": ["only here"]}) for item in grown(2, 100)]
    kept.add(*(item._replace(session="old", started_at=time.time() - 40 * DAY) for item in old))
    young = kept.run("young", days=1)
    assert blobs(kept) == 3  # what the system says is shared; the envelopes differ
    let_an_hour_pass(kept)
    assert swept(kept) == 0
    kept.sums()
    kept.keep(Budget(max_age_s=30 * DAY))
    assert swept(kept) == 1
    assert blobs(kept) == 2
    for record in young:
        assert same(kept.store.record(record.id), record)
    kept.keep(Budget(max_age_s=0.5 * DAY))
    assert swept(kept) == 1  # what was in use is looked at again after an hour
    let_an_hour_pass(kept)
    assert swept(kept) == 1
    assert blobs(kept) == 0
    monkeypatch.setattr(rows, "TOUCH_S", -1.0)  # an hour has passed for those who store, too
    again = kept.run("again", days=0)
    assert same(kept.store.record(again[-1].id), again[-1])


def test_a_blob_that_was_touched_is_not_collected(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.run("old", days=40, length=1)
    let_an_hour_pass(kept)
    kept.sums()
    monkeypatch.setattr(rows, "TOUCH_S", -1.0)
    kept.keep(Budget(max_age_s=30 * DAY))
    other = kept.run("other", days=40, length=1)
    kept.keep(Budget(max_age_s=30 * DAY))
    assert kept.sessions() == set()
    assert swept(kept) == 0
    assert len(other) == 1


def test_the_sums_are_what_is_there(kept: Kept) -> None:
    for number in range(5):
        kept.run(f"run {number}", days=number * 10 + 1)
    sums = kept.sums()
    assert (sums["records"], sums["bytes"]) == kept.exactly()
    kept.keep(Budget(max_age_s=25 * DAY))
    sums = kept.sums()
    assert (sums["records"], sums["bytes"]) == kept.exactly()
    assert sums["records"] + sums["dropped"] == 15


def on_sqlite(folder: Path) -> Kept:
    return Kept(f"sqlite:///{folder / 'reef.db'}")


@pytest.mark.alone
def test_storing_goes_on_during_a_large_deletion(tmp_path: Path) -> None:
    kept = on_sqlite(tmp_path)
    for number in range(60):
        kept.run(f"run {number}", days=40, length=25, size=4000)
    kept.add(exchange([turn("large" + ids.receipt() * 100_000)])._replace(session="large", started_at=time.time() - 40 * DAY))
    kept.sums()
    stop = threading.Event()
    retention = Retention(kept.engine, Policy(default=Budget(max_age_s=30 * DAY)), wait=stop.wait)
    dropping = threading.Thread(target=retention.run_all)
    waits = []
    log_sizes = []
    alone = []
    for number in range(50):
        began = time.perf_counter()
        kept.add(exchange([turn(f"alone {number}")])._replace(session=f"alone {number}"))
        alone.append(time.perf_counter() - began)
    dropping.start()
    while dropping.is_alive():
        began = time.perf_counter()
        kept.add(exchange([turn(f"now {len(waits)}")])._replace(session=f"now {len(waits)}"))
        waits.append(time.perf_counter() - began)
        log_sizes.append((tmp_path / "reef.db-wal").stat().st_size)
    waits.sort()
    sums = kept.sums()
    told = {"alone": sorted(alone)[25], "p50": waits[len(waits) // 2], "p99": waits[int(len(waits) * 0.99)], "most": waits[-1]}
    print(len(waits), {name: f"{1000 * value:.1f} ms" for name, value in told.items()}, max(log_sizes) >> 20, "MiB of log")
    assert sums["dropped"] == 60 * 25 + 1
    assert len(waits) > 50
    assert told["p99"] < 0.1, told  # alone: some milliseconds. It is one of 2 cores, with other work on it
    assert told["most"] < 1.0, told
    assert max(log_sizes) < 64 * 2**20
    assert MOST_BYTES < 16 * 2**20


def test_space_is_given_back_to_what_is_stored_next_and_a_full_disk_becomes_usable(tmp_path: Path) -> None:
    kept = on_sqlite(tmp_path)
    for number in range(20):
        kept.run(f"run {number}", days=40, length=3, size=30_000)
    kept.sums()
    with kept.engine.connect() as tx:
        pages = tx.exec_driver_sql("PRAGMA page_count").scalar()

    def taken(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}")

    sa.event.listen(kept.engine, "checkout", taken)
    kept.committer.close()
    with pytest.raises(StorageError, match="full"):
        kept.committer.commit([item._replace(session="new") for item in grown(3, 30_000)])
    kept.keep(Budget(max_age_s=30 * DAY))
    assert kept.sessions() == set()
    for number in range(15):
        kept.run(f"new {number}", days=0, length=3, size=30_000)
    with kept.engine.connect() as tx:
        assert tx.exec_driver_sql("PRAGMA page_count").scalar() == pages


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "none", str(folder)], capture_output=True, timeout=20)
    if made.returncode:
        pytest.skip("only root may mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)


@pytest.mark.skipif(sys.platform != "linux", reason="no such disk elsewhere")
def test_on_a_disk_without_a_byte_left_the_reserve_makes_room(small_disk: Path) -> None:
    kept = on_sqlite(small_disk)
    Reserve(kept.engine, room=0).hold()
    history = [turn(ids.receipt() * 60_000)]
    number = 0
    with pytest.raises(StorageError, match="full"):
        while True:
            noise = base64.b64encode(os.urandom(300_000)).decode()
            item = exchange([*history, turn(noise)])._replace(session=f"run {number}", started_at=time.time() - 40 * DAY)
            assert kept.committer.commit([item]) == [""]
            number += 1
    (small_disk / "filler").write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - 4096)))
    kept.keep(Budget(max_age_s=30 * DAY))
    assert kept.sessions() == set()
    assert not (small_disk / "reef.db.reserve").exists()
    kept.run("new", days=0, size=300_000)
    assert kept.sessions() == {"new"}
    kept.committer.close()
    kept.engine.dispose()
