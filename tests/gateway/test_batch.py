"""Records over HTTP in batches, and all of them out again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.experience.writer import Writer
from reef.gateway import transfer, wire
from reef.gateway.auth import Auth
from tests.support.gateway import Answer, Service, service
from tests.support.tokens import ADMIN, issue
from tests.support.upstream import FakeUpstream

LINES = {"content-type": "application/x-ndjson"}


def pair(text: str = "hi", **more: Any) -> dict[str, Any]:
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": f"re: {text}"}}]}
    return {"request": {"model": "m", "messages": [{"role": "user", "content": text}]}, "response": answer, **more}


def post(gateway: Service, *lines: Any, query: str = "", **headers: str) -> Answer:
    body = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return gateway.request("POST", f"/reef/records/batch{query}", body, {**LINES, **headers})


@pytest.fixture
def guarded(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    with service(tmp_path / "guarded", upstream=fake.url, auth=Auth(token="root")) as running:
        yield running


def test_lines_and_an_array_are_taken_alike(gateway: Service) -> None:
    first = post(gateway, pair("a", id="a"), b"", {"kind": "report", "references": ["a"], "score": 1})
    assert (first.status, first.json["stored"]) == (200, {"sessions": 0, "records": 1, "reports": 1})
    second = gateway.request("POST", "/reef/records/batch", [pair("a", id="a"), pair("b")])
    assert (second.json["stored"]["records"], second.json["there"]["records"]) == (1, 1)
    assert second.json["ids"][0] == "a"
    for receipt in second.json["ids"]:
        assert gateway.request("GET", f"/reef/records/{receipt}").json["response"]["choices"]


def test_records_go_to_the_scenario_they_name_or_the_header_does(gateway: Service) -> None:
    assert post(gateway, pair("a", id="a"), pair("b", id="b", scenario="mine"), **{"x-reef-scenario": "theirs"}).status == 200
    assert [gateway.store.record(name).scenario for name in ("a", "b")] == ["theirs", "mine"]
    gateway.request("POST", "/reef/scenarios", {"name": "theirs"})
    assert "theirs" in gateway.request("GET", "/reef/status").json["scenarios"]


def test_nothing_of_a_batch_with_a_bad_line_is_stored(gateway: Service) -> None:
    bad: list[tuple[Any, int, str]] = [
        (b"{", 422, "line 502: not JSON"),
        ({"request": {}, "response": {}, "started_at": "x"}, 422, "line 502: started_at"),
        ({**pair(), "scenario": "a b"}, 422, "line 502: scenario"),
        ({**pair(), "release": 0}, 422, "line 502: release"),
        ({"kind": "report", "references": ["missing"]}, 404, "line 502: there is no record missing"),
        ({"kind": "report", "score": 1}, 400, "line 502: a report quotes"),
        (pair("other", id="a"), 409, "line 502: record a"),
    ]
    for line, status, said in bad:
        answer = post(gateway, pair("a", id="a"), line, query="?first=501")
        assert (answer.status, said in answer.error["message"]) == (status, True), answer.raw
    assert gateway.store.counts()["records"] == 0


def test_a_batch_has_its_bounds(gateway: Service) -> None:
    answer = post(gateway, *[b'{"request":{},"response":{}}'] * (transfer.MAX_BATCH_LINES + 1))
    assert (answer.status, "at most 1000" in answer.error["message"]) == (422, True)
    answer = gateway.request("POST", "/reef/records/batch", b"{", {**LINES, "content-length": str(4 * wire.MAX_BODY_BYTES)})
    assert (answer.status, answer.error["type"]) == (413, "too_large_error")
    for nothing in (b"", b"[]", b"\n"):
        assert gateway.request("POST", "/reef/records/batch", nothing).json["ids"] == []
    assert gateway.request("POST", "/reef/records/batch", b"[1").status == 400


def test_only_an_admin_may_bring_records_and_only_to_its_scenario(guarded: Service) -> None:
    assert post(guarded, pair()).status == 401
    writer = issue(guarded, "writer", "infer", "report", "read", "harness")
    assert post(guarded, pair(), **writer).status == 403
    bound = issue(guarded, "bound", "admin", "read", scenario="mine")
    assert post(guarded, pair(id="a"), pair(id="b", scenario="mine"), **bound).status == 200
    assert guarded.store.record("a").scenario == "mine"
    refused = post(guarded, pair(), pair(scenario="other"), **bound)
    assert (refused.status, refused.error["message"].startswith("line 2: this token is bound")) == (403, True)
    assert post(guarded, pair(id="c", scenario="other"), **ADMIN).status == 200
    exported = guarded.request("GET", "/reef/export", headers=bound)
    assert [json.loads(line)["id"] for line in exported.raw.splitlines()] == ["a", "b"]
    assert guarded.request("GET", "/reef/export?scenario=other", headers=bound).status == 403
    assert guarded.request("GET", "/reef/export").status == 401


def test_what_was_served_goes_out_and_into_another_service(gateway: Service, tmp_path: Path, fake: FakeUpstream) -> None:
    receipt = gateway.chat(x_reef_session="run").receipt
    gateway.chat(x_reef_scenario="second")
    gateway.request("POST", "/reef/sessions", {"session": "run", "adapter": "pi", "release": 1})
    gateway.request("POST", "/reef/report", {"references": [receipt], "score": 0, "agent_record_id": "mine", "feedback": "no"})
    exported = gateway.request("GET", "/reef/export")
    assert exported.headers["content-type"] == "application/x-ndjson"
    with service(tmp_path / "second", upstream=fake.url) as second:
        answer = post(second, exported.raw)
        assert answer.json["stored"] == {"sessions": 1, "records": 2, "reports": 1}, answer.raw
        assert second.request("GET", "/reef/export").raw == exported.raw
        again = second.request("POST", "/reef/report", {"references": [receipt], "score": 0, "agent_record_id": "mine", "feedback": "no"})
        assert (again.status, again.json["created"]) == (200, False)
    assert gateway.request("GET", "/reef/export?scenario=second").raw.count(b"\n") == 1
    assert gateway.request("GET", "/reef/export?session=run").raw.count(b"\n") == 3


def test_two_imports_of_the_same_at_once_store_it_once(gateway: Service) -> None:
    batch = [pair(f"turn {number}", id=f"r{number}") for number in range(40)]
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(post(gateway, *batch))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 4, [answer.raw for answer in answers]
    assert sum(answer.json["stored"]["records"] for answer in answers) == gateway.store.counts()["records"] == 40
    assert all(answer.json["stored"]["records"] + answer.json["there"]["records"] == 40 for answer in answers)


def test_a_record_already_stored_does_not_harm_its_neighbours(gateway: Service) -> None:
    """What the import looks for before it stores is not all there is: another gateway may be faster."""
    post(gateway, pair("a", id="a"))
    stored = gateway.store.record("a")
    items = (stored, stored._replace(id="b"))

    async def record_both() -> list[Any]:
        writer = Writer(gateway.state.engine)
        writer.start()
        try:
            return await asyncio.gather(*map(writer.record, items), return_exceptions=True)
        finally:
            await writer.aclose()

    first, second = asyncio.run(record_both())
    assert (type(first).__name__, second) == ("StorageError", None)
    assert gateway.store.record("b").request == stored.request
