"""Bytes pass through, and the record tells what really happened."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path

import pytest

from reef.gateway.auth import Auth
from reef.types import End, Origin
from tests.support.gateway import CHAT, Service, service, until
from tests.support.upstream import DONE, FakeUpstream, Reply, chunk, greeting, message, stream, whole

STREAM = {**CHAT, "stream": True}


def test_an_answer_passes_through_byte_for_byte_and_is_recorded(gateway: Service, fake: FakeUpstream) -> None:
    request = b'{ "model" : "m",  "temperature":0.70, "messages":[{"content":"hi","role":"user"}] }'
    answer = gateway.chat(request, x_reef_scenario="work", x_reef_session="run:1", x_reef_release="3")
    assert answer.status == 200
    assert fake.seen[0].raw == request
    assert fake.seen[0].path == "/v1/chat/completions"
    assert answer.raw == whole().pieces[0]
    record = gateway.record(answer)
    assert json.dumps(record.request) == json.dumps(json.loads(request))
    assert json.dumps(record.response) == json.dumps(message())
    assert (record.scenario, record.session, record.release, record.origin) == ("work", "run:1", 3, Origin.USER)
    assert (record.end, record.status, record.streamed, record.model) == (End.COMPLETE, 200, False, "m")
    assert record.usage == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert record.upstream == fake.url
    assert 0 < record.first_byte_ms <= record.duration_ms


def test_a_stream_passes_through_byte_for_byte_and_is_recorded_as_its_completion(gateway: Service, fake: FakeUpstream) -> None:
    answer = gateway.chat(STREAM)
    assert answer.raw == b"".join(greeting())
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-accel-buffering"] == "no"
    record = gateway.record(answer)
    assert record.streamed
    assert record.end is End.COMPLETE
    assert record.response["choices"] == [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]
    assert record.usage["completion_tokens"] == 3


def test_events_leave_when_they_come_and_the_receipt_comes_first(gateway: Service, fake: FakeUpstream) -> None:
    go = threading.Event()
    pieces = greeting()
    fake.replies = [stream(*pieces[:2], go, *pieces[2:])]
    connection = gateway.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.getheader("x-reef-agent-record-id")
    assert response.read(len(pieces[0] + pieces[1])) == pieces[0] + pieces[1]  # while the upstream waits for us
    go.set()
    assert response.read() == b"".join(pieces[2:])
    connection.close()


def test_the_end_leaves_only_after_the_record_is_stored(gateway: Service, fake: FakeUpstream) -> None:
    with gateway.state.engine.connect() as other:
        other.exec_driver_sql("ROLLBACK")
        other.exec_driver_sql("BEGIN IMMEDIATE")  # nobody else can commit now
        connection = gateway.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), {"content-type": "application/json"})
        response = connection.getresponse()
        early = b"".join(greeting()[:-1])
        assert response.read(len(early)) == early
        connection.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            response.read(1)
        other.exec_driver_sql("ROLLBACK")
    connection.close()
    until(lambda: gateway.store.records("default"))


def test_the_url_may_name_scenario_and_session(gateway: Service, fake: FakeUpstream) -> None:
    record = gateway.record(gateway.chat(path="/s/work/run-1/v1/chat/completions", x_reef_scenario="other"))
    assert (record.scenario, record.session) == ("work", "run-1")
    assert gateway.request("GET", "/s/work/run-1/v1/models").json["data"][0]["id"] == "fake-1"


def test_a_scenario_comes_to_be_by_its_first_use(gateway: Service) -> None:
    gateway.chat(x_reef_scenario="fresh")
    until(lambda: gateway.state.scenarios.heads.get("fresh") == 1)
    assert gateway.state.controller.head("fresh").step == 1


@pytest.mark.parametrize("asked", [{"model": "reef"}, {"model": "default"}, {"model": None}, {}])
def test_a_caller_without_a_model_of_its_own_gets_the_configured_one(tmp_path: Path, fake: FakeUpstream, asked: dict[str, str]) -> None:
    with service(tmp_path, upstream=fake.url, upstream_section={"model": "big"}) as gateway:
        body = {**asked, "messages": CHAT["messages"]}
        record = gateway.record(gateway.chat(body))
        assert fake.seen[-1].body == {**body, "model": "big"}
        assert record.request == body
        assert record.model == "big"


def test_a_caller_with_a_model_of_its_own_keeps_it(tmp_path: Path, fake: FakeUpstream) -> None:
    with service(tmp_path, upstream=fake.url, upstream_section={"model": "big"}) as gateway:
        gateway.chat(b'{"model":  "small", "messages": []}')
        assert fake.seen[-1].raw == b'{"model":  "small", "messages": []}'


def test_the_upstream_gets_its_own_key_and_never_the_callers(tmp_path: Path, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "upstream-secret")
    with service(tmp_path, upstream=fake.url, upstream_section={"key_env": "THE_KEY"}, auth=Auth(token="mine")) as gateway:
        sent = {"authorization": "Bearer mine", "x_api_key": "mine", "cookie": "a=b", "x_reef_session": "s", "x_title": "t"}
        assert gateway.chat(**sent).status == 200
    headers = fake.seen[-1].headers
    assert headers["authorization"] == "Bearer upstream-secret"
    assert headers["x-title"] == "t"
    assert headers["accept-encoding"] == "identity"
    assert not headers.keys() & {"x-api-key", "cookie", "x-reef-session"}


def test_tokens_decide_the_origin(tmp_path: Path, fake: FakeUpstream) -> None:
    auth = Auth(token="full", trial="trial", proposer="proposer")
    with service(tmp_path, upstream=fake.url, auth=auth) as gateway:
        for token, origin in (("full", Origin.USER), ("trial", Origin.TRIAL), ("proposer", Origin.PROPOSER)):
            assert gateway.record(gateway.chat(authorization=f"Bearer {token}")).origin is origin
        refused = gateway.request("GET", "/reef/status", headers={"x-api-key": "trial"})
        assert (refused.status, refused.error["type"]) == (403, "permission_error")


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_the_providers_errors_pass_through_and_are_recorded(gateway: Service, fake: FakeUpstream, status: int) -> None:
    error = {"error": {"message": "no", "code": None}}
    fake.replies = [whole(error, status=status, headers={"retry-after": "7", "x-request-id": "r"})]
    answer = gateway.chat(STREAM)
    assert (answer.status, answer.json) == (status, error)
    assert (answer.headers["retry-after"], answer.headers["x-request-id"]) == ("7", "r")
    record = gateway.record(answer)
    assert (record.end, record.status, record.response) == (End.UPSTREAM_ERROR, status, error)


def test_an_answer_that_is_no_json_passes_through_and_is_no_success(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [Reply(pieces=[b"<html>hello"], content_type="text/html")]
    answer = gateway.chat()
    assert (answer.status, answer.raw) == (200, b"<html>hello")
    record = gateway.record(answer)
    assert (record.end, record.response) == (End.UPSTREAM_ERROR, "<html>hello")


@pytest.mark.parametrize("end", ["reset", "close", "clean"])
def test_a_stream_that_ends_before_its_answer_is_never_a_clean_stop(gateway: Service, fake: FakeUpstream, end: str) -> None:
    fake.replies = [stream(*greeting()[:2], b'data: {"cut": "o', end=end)]
    answer = gateway.chat(STREAM)
    events = answer.raw.strip().split(b"\n\n")
    assert b"[DONE]" not in answer.raw
    assert events[:2] == [event.strip() for event in greeting()[:2]]
    error = json.loads(events[2].strip().removeprefix(b"data: "))["error"]
    assert set(error) == {"type", "message", "hint"}
    record = gateway.record(answer)
    assert record.end is End.TRUNCATED
    assert record.response["choices"] == [{"index": 0, "message": {"role": "assistant", "content": "hel"}, "finish_reason": None}]


def test_done_without_a_finish_is_no_end(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [stream(*greeting()[:2], DONE)]
    answer = gateway.chat(STREAM)
    assert b"[DONE]" not in answer.raw
    assert gateway.record(answer).end is End.TRUNCATED


def test_every_choice_asked_for_must_have_ended(gateway: Service, fake: FakeUpstream) -> None:
    answer = gateway.chat({**STREAM, "n": 2})
    assert b"[DONE]" not in answer.raw
    assert gateway.record(answer).end is End.TRUNCATED


@pytest.mark.parametrize("end", ["clean", "reset"])
def test_an_answer_that_finished_needs_no_done(gateway: Service, fake: FakeUpstream, end: str) -> None:
    fake.replies = [stream(*greeting()[:-1], end=end)]
    answer = gateway.chat(STREAM)
    assert answer.raw == b"".join(greeting()[:-1])
    assert gateway.record(answer).end is End.COMPLETE


def test_an_upstream_that_stays_open_after_done_does_not_hold_the_answer(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [stream(*greeting(), end="hang")]
    answer = gateway.chat(STREAM)
    assert answer.raw == b"".join(greeting())
    assert gateway.record(answer).end is End.COMPLETE


def test_an_error_reported_inside_the_stream_is_passed_on_once_and_recorded(gateway: Service, fake: FakeUpstream) -> None:
    reported = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
    fake.replies = [stream(*greeting()[:2], reported, DONE)]
    answer = gateway.chat(STREAM)
    assert answer.raw.strip() == b"".join([*greeting()[:2], reported]).strip()
    record = gateway.record(answer)
    assert record.end is End.UPSTREAM_ERROR
    assert "out of memory" in record.error


@pytest.mark.parametrize("end", ["reset", "close"])
def test_an_upstream_that_dies_before_the_first_byte_is_a_502(gateway: Service, fake: FakeUpstream, end: str) -> None:
    fake.replies = [Reply(silent=True, end=end)]
    answer = gateway.chat()
    assert (answer.status, answer.error["type"]) == (502, "upstream_error")
    assert (gateway.record(answer).end, gateway.record(answer).status) == (End.UPSTREAM_ERROR, 502)


def test_an_upstream_that_dies_in_the_middle_of_a_json_answer_is_a_502(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [whole(end="close")]
    answer = gateway.chat()
    assert (answer.status, answer.error["type"]) == (502, "upstream_error")
    assert gateway.record(answer).end is End.TRUNCATED


def test_an_upstream_that_is_down_is_a_502(tmp_path: Path) -> None:
    with service(tmp_path, upstream="http://127.0.0.1:9/v1") as gateway:
        answer = gateway.chat()
        assert (answer.status, answer.error["type"]) == (502, "upstream_error")
        assert gateway.record(answer).end is End.UPSTREAM_ERROR
        assert gateway.request("GET", "/v1/models").status == 502
        assert gateway.request("GET", "/reef/status").json["upstream"]["reachable"] is False


@pytest.mark.parametrize("pieces", [None, greeting()[:2]])
def test_silence_beyond_the_bound_is_a_timeout(tmp_path: Path, fake: FakeUpstream, pieces: list[bytes] | None) -> None:
    with service(tmp_path, upstream=fake.url, upstream_section={"timeout_s": 0.2}) as gateway:
        fake.replies = [Reply(silent=True, end="hang") if pieces is None else stream(*pieces, end="hang")]
        answer = gateway.chat(STREAM)
        if pieces is None:
            assert (answer.status, answer.error["type"]) == (504, "upstream_timeout_error")
        else:
            assert b"upstream_timeout_error" in answer.raw
            assert b"[DONE]" not in answer.raw
        assert gateway.record(answer).end is End.TIMEOUT
        assert until(fake.seen[0].hung_up.is_set)


@pytest.mark.parametrize("pieces", [None, greeting()[:2]])
def test_when_the_client_goes_the_upstream_is_stopped_at_once(gateway: Service, fake: FakeUpstream, pieces: list[bytes] | None) -> None:
    fake.replies = [Reply(silent=True, end="hang") if pieces is None else stream(*pieces, end="hang")]
    connection = gateway.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), {"content-type": "application/json"})
    if pieces is not None:
        connection.getresponse().read(10)
    until(lambda: fake.seen)
    connection.sock.close() if connection.sock else None
    connection.close()
    assert fake.seen[0].hung_up.wait(5)
    record = until(lambda: gateway.store.records("default"))[0]
    assert record.end is End.CLIENT_GONE
    assert (record.response is None) == (pieces is None)


def test_odd_messages_are_passed_on_and_recorded_as_they_are(gateway: Service, fake: FakeUpstream) -> None:
    for messages in ("text", None, [], [1, "x", None], {"a": 1}):
        body = {"messages": messages, "model": "m"}
        assert json.dumps(gateway.record(gateway.chat(body)).request) == json.dumps(body)
        assert fake.seen[-1].body == body


def test_a_storage_failure_is_a_507_and_storing_resumes_by_itself(gateway: Service, fake: FakeUpstream) -> None:
    with gateway.state.engine.begin() as tx:
        tx.exec_driver_sql("ALTER TABLE records RENAME TO elsewhere")
    answer = gateway.chat()
    assert (answer.status, answer.error["type"]) == (507, "storage_error")
    assert "x-reef-agent-record-id" not in answer.headers
    streamed = gateway.chat(STREAM)
    assert b"storage_error" in streamed.raw
    assert b"[DONE]" not in streamed.raw
    assert gateway.request("GET", "/healthz").status == 200
    with gateway.state.engine.begin() as tx:
        tx.exec_driver_sql("ALTER TABLE elsewhere RENAME TO records")
    assert gateway.record(gateway.chat()).request == CHAT


def test_connections_are_reused(gateway: Service, fake: FakeUpstream) -> None:
    connection = gateway.connect()
    for _ in range(3):
        for body in (CHAT, STREAM):
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            response: http.client.HTTPResponse = connection.getresponse()
            assert response.status == 200
            response.read()
    connection.close()


def test_chunks_of_unknown_kinds_do_not_stop_a_stream(gateway: Service, fake: FakeUpstream) -> None:
    pieces = [b": keep-alive\n\n", b"event: ping\ndata: not json\n\n", *greeting()[:1], chunk({}, finish="stop"), DONE]
    fake.replies = [stream(*pieces)]
    answer = gateway.chat(STREAM)
    assert answer.raw == b"".join(pieces)
    assert gateway.record(answer).end is End.COMPLETE
