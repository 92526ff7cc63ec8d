"""A full disk is said clearly, loses nothing that was acknowledged, and serving goes on by itself once there is room again."""

from __future__ import annotations

import json
import resource
import secrets
import sqlite3
import sys
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import dialects
from tests.support.gateway import Answer, Service, service, until
from tests.support.service import serving, wait_for
from tests.support.upstream import FakeUpstream, upstream

PLENTY = 2**30
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


class Disk:
    """How much the database may grow. Beyond, SQLite answers SQLITE_FULL, as it does where a disk has no more room."""

    def __init__(self) -> None:
        self.engine: sa.Engine | None = None
        self._lock = threading.Lock()
        self._pages = PLENTY
        self._connections: list[sqlite3.Connection] = []

    def fill(self) -> None:
        """From now on there is no room for anything."""
        assert self.engine is not None
        with self.engine.connect() as connection:
            self._allow(connection.exec_driver_sql("PRAGMA page_count").scalar() or 1)

    def free(self) -> None:
        """There is room again."""
        self._allow(PLENTY)

    def connected(self, connection: Any, _record: object) -> None:
        """Every connection keeps to it."""
        if isinstance(connection, sqlite3.Connection):
            with self._lock:
                self._connections.append(connection)
                connection.execute(f"PRAGMA max_page_count={self._pages}")

    def _allow(self, pages: int) -> None:
        with self._lock:
            self._pages = pages
            for connection in list(self._connections):
                try:
                    connection.execute(f"PRAGMA max_page_count={pages}")
                except sqlite3.ProgrammingError:  # closed
                    self._connections.remove(connection)


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream(dialects.answer) as server:
        yield server


@pytest.fixture
def disk() -> Iterator[Disk]:
    found = Disk()
    sa.event.listen(sa.pool.Pool, "connect", found.connected)
    yield found
    sa.event.remove(sa.pool.Pool, "connect", found.connected)


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeUpstream, disk: Disk) -> Iterator[Service]:
    every = {"dialects": list(PATHS)}
    with service(tmp_path, upstream=fake.url, upstream_section=every) as running:
        disk.engine = running.state.engine
        yield running


def ask(gateway: Service, name: str = "chat", *, streamed: bool = False) -> Answer:
    """A request that is new every time, and too large for the room left in a page."""
    said = [{"role": "user", "content": secrets.token_hex(20_000)}]
    body: dict[str, Any] = {"model": "m", "stream": streamed, ("input" if name == "responses" else "messages"): said}
    return gateway.chat(body, path=PATHS[name])


@pytest.mark.parametrize("name", list(PATHS))
def test_an_answer_that_cannot_be_recorded_is_507_in_the_dialect_and_serving_recovers(gateway: Service, disk: Disk, name: str) -> None:
    before = ask(gateway, name)
    disk.fill()
    refused = ask(gateway, name)
    assert refused.status == 507
    assert "x-reef-agent-record-id" not in refused.headers
    error = refused.json["error"]
    assert "full" in error["message"]
    assert "Free disk space" in error["hint"]
    assert refused.json.get("type") == ("error" if name == "messages" else None)
    disk.free()
    after = ask(gateway, name)
    assert (before.status, after.status) == (200, 200)
    for answer in (before, after):
        assert gateway.record(answer).response is not None
    assert gateway.store.counts()["records"] == 2


@pytest.mark.parametrize("name", list(PATHS))
def test_a_stream_that_cannot_be_recorded_ends_with_an_error_and_never_cleanly(gateway: Service, disk: Disk, name: str) -> None:
    disk.fill()
    refused = ask(gateway, name, streamed=True)
    assert b"full" in refused.raw
    assert b"error" in refused.raw
    for clean_end in (b"[DONE]", b"message_stop", b"response.completed"):
        assert clean_end not in refused.raw
    disk.free()
    answer = ask(gateway, name, streamed=True)
    assert gateway.record(answer).streamed
    assert gateway.store.counts()["records"] == 1


def test_what_was_acknowledged_under_load_is_there_however_often_the_disk_fills(gateway: Service, disk: Disk) -> None:
    receipts: list[str] = []
    refused = [0]
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            answer = ask(gateway)
            if answer.status == 200:
                receipts.append(answer.receipt)
            else:
                assert answer.status == 507, answer.raw
                refused[0] += 1

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        had = len(receipts)
        until(lambda had=had: len(receipts) > had + 5, within_s=30)
        disk.fill()
        had = refused[0]
        until(lambda had=had: refused[0] > had + 5, within_s=30)
        disk.free()
    stop.set()
    for thread in threads:
        thread.join(20)
    assert len({gateway.store.record(receipt).id for receipt in receipts}) == len(receipts)
    assert gateway.store.counts()["records"] == len(receipts)


def test_reports_and_imports_are_refused_alike_and_can_be_sent_again(gateway: Service, disk: Disk) -> None:
    receipt = ask(gateway).receipt
    report = {"references": [receipt], "score": 1, "feedback": secrets.token_hex(20_000), "agent_record_id": "mine"}
    lines = [{"id": f"r{number}", "request": {"messages": [secrets.token_hex(20_000)]}, "response": None} for number in range(3)]
    session = {"session": "run", "adapter": "pi"}
    disk.fill()
    answers = [gateway.request("POST", path, body) for path, body in (("/reef/report", report), ("/reef/records/batch", lines))]
    assert [answer.status for answer in answers] == [507, 507], [answer.raw for answer in answers]
    assert all("full" in answer.error["message"] for answer in answers)
    assert "of this batch 0 sessions, 0 records, 0 reports were stored" in answers[1].error["message"]
    status = gateway.request("GET", "/reef/status").json
    assert "full" in status["writer"]["last_error"]
    assert gateway.request("GET", "/healthz").status == 200
    disk.free()
    assert gateway.request("POST", "/reef/report", report).status == 201
    assert gateway.request("POST", "/reef/records/batch", lines).json["stored"]["records"] == 3
    assert gateway.request("POST", "/reef/sessions", session).status == 201
    assert ask(gateway).status == 200
    assert gateway.request("GET", "/reef/status").json["writer"]["last_error"] == ""
    assert json.loads(gateway.request("GET", "/reef/export").raw.splitlines()[0])["id"] == "run"


@pytest.mark.skipif(sys.platform != "linux", reason="no other system lets one limit another process")
def test_a_whole_service_lives_through_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    """Real processes, and a limit of the kernel on every file they write: log files too, as on a disk that is full."""
    with serving(tmp_path, "--upstream", "rehearsal") as running:
        gateway = wait_for(lambda: running.pid("gateway"), "the gateway")
        chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        running.post("/v1/chat/completions", chat)
        its = [gateway, *map(int, Path(f"/proc/{gateway}/task/{gateway}/children").read_text().split())]
        unlimited = [resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in its]
        for pid, (_, hard) in zip(its, unlimited, strict=True):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
        for _ in range(3):
            with pytest.raises(urllib.error.HTTPError) as refusal:
                running.post("/v1/chat/completions", chat)
            assert refusal.value.code == 507
            assert json.load(refusal.value)["error"]["type"] == "storage_error"
        assert running.pid("gateway") == gateway
        for pid, limits in zip(its, unlimited, strict=True):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        running.post("/v1/chat/completions", chat)
        assert running.get("/reef/status")["counts"]["records"] == 2
