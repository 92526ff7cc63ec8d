"""Every dialect passes through as it came, is recorded as what it was, and is refused in its own words."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.gateway.auth import Auth
from reef.types import End
from tests.support import dialects
from tests.support.gateway import Answer, Service, service, until
from tests.support.upstream import FakeUpstream, Reply, stream, upstream, whole

ALL = {"dialects": ["chat", "responses", "messages"]}
MESSAGES = {
    "model": "m",
    "max_tokens": 9,
    "system": "be kind",
    "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "!"}],
}
RESPONSES = {"model": "m", "instructions": "be kind", "input": [{"role": "user", "content": "hi"}]}
CASES = {
    "messages": ("/v1/messages", MESSAGES, dialects.message, dialects.message_events),
    "responses": ("/v1/responses", RESPONSES, dialects.response, dialects.response_events),
}
both = pytest.mark.parametrize("name", list(CASES))


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream(lambda seen: server.replies.pop(0) if server.replies else dialects.answer(seen)) as server:
        yield server


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    with service(tmp_path, upstream=fake.url, upstream_section=ALL) as running:
        yield running


@both
def test_an_answer_passes_through_byte_for_byte_and_is_recorded(gateway: Service, fake: FakeUpstream, name: str) -> None:
    path, body, answered, _ = CASES[name]
    request = json.dumps(body, indent=1).encode()
    answer = gateway.chat(request, path=path, x_reef_scenario="work", x_reef_session="run:1", x_reef_release="3")
    assert (fake.seen[0].path, fake.seen[0].raw) == (path, request)
    assert answer.raw == whole(answered()).pieces[0]
    record = gateway.record(answer)
    assert json.dumps(record.request) == json.dumps(body)
    assert json.dumps(record.response) == json.dumps(answered())
    assert (record.dialect, record.end, record.streamed, record.status) == (name, End.COMPLETE, False, 200)
    assert (record.scenario, record.session, record.release, record.model) == ("work", "run:1", 3, "m")


@both
def test_a_stream_passes_through_byte_for_byte_and_is_recorded_as_the_whole_answer(gateway: Service, name: str) -> None:
    path, body, answered, events = CASES[name]
    answer = gateway.chat({**body, "stream": True}, path=path)
    assert answer.raw == b"".join(events())
    record = gateway.record(answer)
    assert json.dumps(record.response) == json.dumps(answered())
    assert (record.dialect, record.end, record.streamed) == (name, End.COMPLETE, True)
    assert gateway.request("GET", f"/reef/records/{record.id}").json["response"] == answered()


@both
def test_tokens_are_counted_under_the_same_names_in_every_dialect(gateway: Service, name: str) -> None:
    path, body, *_ = CASES[name]
    usage = gateway.record(gateway.chat(body, path=path)).usage
    assert (usage["completion_tokens"], usage["cached_tokens"]) == (3, 4)
    assert usage["prompt_tokens"] == {"messages": 13, "responses": 7}[name]


@both
def test_the_last_event_leaves_only_after_the_record_is_stored(gateway: Service, name: str) -> None:
    path, body, _, events = CASES[name]
    with gateway.state.engine.connect() as other:
        other.exec_driver_sql("ROLLBACK")
        other.exec_driver_sql("BEGIN IMMEDIATE")  # nobody else can commit now
        connection = gateway.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"})
        response = connection.getresponse()
        early = b"".join(events()[:-1])
        assert response.read(len(early)) == early
        connection.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            response.read(1)
        other.exec_driver_sql("ROLLBACK")
    connection.close()
    until(lambda: gateway.store.records("default"))


@both
@pytest.mark.parametrize("kept", [1, 5, -1])
def test_a_stream_that_breaks_off_ends_with_an_error_and_never_as_if_it_were_whole(
    gateway: Service, fake: FakeUpstream, name: str, kept: int
) -> None:
    path, body, _, events = CASES[name]
    go = threading.Event()
    fake.replies = [stream(*events()[:kept], events()[kept][:-20], go, end="reset")]
    connection = gateway.connect()
    connection.request("POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"})
    response = connection.getresponse()
    came = b"".join(events()[:kept])
    assert response.read(len(came)) == came
    go.set()
    event, data = response.read().strip().split(b"\n")
    connection.close()
    assert event == b"event: error"
    reported = json.loads(data.removeprefix(b"data: "))
    assert reported["type"] == "error"
    assert reported["error"]["type"] == "upstream_error"
    assert reported["error"]["hint"]
    record = gateway.store.record(response.headers["x-reef-agent-record-id"])
    assert record.end is End.TRUNCATED
    assert record.response["id"]


@both
def test_an_answer_needs_no_blank_line_after_its_last_event(gateway: Service, fake: FakeUpstream, name: str) -> None:
    path, body, answered, events = CASES[name]
    *first, last = events()
    fake.replies = [stream(*first, last[:-2])]
    answer = gateway.chat({**body, "stream": True}, path=path)
    assert answer.raw == b"".join(events())[:-2]
    assert gateway.record(answer).response == answered()
    assert gateway.record(answer).end is End.COMPLETE


def test_an_error_inside_a_stream_is_passed_on_once_and_recorded(gateway: Service, fake: FakeUpstream) -> None:
    events = dialects.message_events()
    error = dialects.named("error", error={"type": "overloaded_error", "message": "too much"})
    fake.replies = [stream(*events[:3], error, events[-1])]
    answer = gateway.chat({**MESSAGES, "stream": True}, path="/v1/messages")
    assert answer.raw.strip() == b"".join([*events[:3], error]).strip()
    assert gateway.record(answer).end is End.UPSTREAM_ERROR
    assert "too much" in gateway.record(answer).error


def test_a_response_that_failed_is_passed_on_and_recorded_as_failed(gateway: Service, fake: FakeUpstream) -> None:
    failed = {**dialects.response("failed"), "output": [], "error": {"code": "server_error", "message": "out of memory"}}
    pieces = [*dialects.response_events()[:2], dialects.named("response.failed", response=failed, sequence_number=2)]
    fake.replies = [stream(*pieces), whole(failed)]
    streamed = gateway.chat({**RESPONSES, "stream": True}, path="/v1/responses")
    assert streamed.raw.replace(b"\n", b"") == b"".join(pieces).replace(b"\n", b"")
    for answer in (streamed, gateway.chat(RESPONSES, path="/v1/responses")):
        assert gateway.record(answer).end is End.UPSTREAM_ERROR
        assert gateway.record(answer).response == failed


@pytest.mark.parametrize(
    ("status", "end"),
    [("completed", End.COMPLETE), ("incomplete", End.COMPLETE), ("queued", End.TRUNCATED), ("cancelled", End.UPSTREAM_ERROR)],
)
def test_a_whole_response_ends_as_it_says(gateway: Service, fake: FakeUpstream, status: str, end: End) -> None:
    fake.replies = [whole(dialects.response(status))]
    assert gateway.record(gateway.chat(RESPONSES, path="/v1/responses")).end is end


def test_an_incomplete_response_is_an_end_of_its_own(gateway: Service, fake: FakeUpstream) -> None:
    said = dialects.response("incomplete")
    fake.replies = [stream(*dialects.response_events()[:-1], dialects.named("response.incomplete", response=said))]
    record = gateway.record(gateway.chat({**RESPONSES, "stream": True}, path="/v1/responses"))
    assert (record.end, record.response) == (End.COMPLETE, said)


@pytest.mark.parametrize("value", ["hi", "", [], None, 3, ["hi"], [None, {"role": "user"}]])
def test_whatever_the_input_is_it_is_passed_on_and_given_back(gateway: Service, fake: FakeUpstream, value: object) -> None:
    body = {"input": value, "model": "m", "instructions": None}
    record = gateway.record(gateway.chat(body, path="/v1/responses"))
    assert json.dumps(record.request) == json.dumps(body)
    assert json.dumps(record.response) == json.dumps(dialects.response())


def test_the_query_and_anthropics_headers_reach_the_upstream_and_the_callers_key_does_not(
    tmp_path: Path, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "upstream-secret")
    headers = {"x-api-key": "mine", "anthropic-version": "2024-01-01", "anthropic-beta": "a,b", "cookie": "c=1"}
    section = {"dialects": ["messages"], "key_env": "THE_KEY"}
    with service(tmp_path, upstream=fake.url, upstream_section=section, auth=Auth(token="mine")) as gateway:
        assert gateway.request("POST", "/v1/messages?beta=true", MESSAGES, headers).status == 200
        gateway.request("GET", "/v1/models", headers={"x-api-key": "mine"})
    asked, models = fake.seen
    assert asked.path == "/v1/messages?beta=true"
    assert (asked.headers["x-api-key"], asked.headers["anthropic-version"], asked.headers["anthropic-beta"]) == (
        "upstream-secret",
        "2024-01-01",
        "a,b",
    )
    assert "authorization" not in asked.headers
    assert "cookie" not in asked.headers
    assert "mine" not in str(asked.headers) + str(models.headers)
    assert (models.headers["x-api-key"], models.headers["anthropic-version"]) == ("upstream-secret", "2023-06-01")


def test_a_server_that_speaks_several_dialects_gets_its_key_in_both_forms(
    tmp_path: Path, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "secret")
    with service(tmp_path, upstream=fake.url, upstream_section={**ALL, "key_env": "THE_KEY"}) as gateway:
        gateway.chat(MESSAGES, path="/v1/messages")
    assert (fake.seen[0].headers["x-api-key"], fake.seen[0].headers["authorization"]) == ("secret", "Bearer secret")


def test_tokens_are_counted_by_the_upstream_and_no_inference_is_recorded(tmp_path: Path, fake: FakeUpstream) -> None:
    with service(tmp_path, upstream=fake.url, upstream_section={**ALL, "model": "big"}) as gateway:
        for path in ("/v1/messages/count_tokens?beta=true", "/s/work/run/v1/messages/count_tokens"):
            answer = gateway.request("POST", path, {"model": "reef", "messages": []})
            assert (answer.status, answer.json) == (200, {"input_tokens": 7})
            assert "x-reef-agent-record-id" not in answer.headers
            assert fake.seen[-1].body["model"] == "big"
        assert fake.seen[0].path == "/v1/messages/count_tokens?beta=true"
        assert gateway.state.store.counts()["records"] == 0
        assert gateway.request("POST", "/v1/messages/count_tokens", b"{").json["type"] == "error"


@pytest.mark.parametrize("path", ["/", "/s/work/run", "/s/work/run/"])
def test_an_agent_may_look_whether_its_base_url_is_there(gateway: Service, path: str) -> None:
    assert gateway.request("HEAD", path).status == 200


@both
def test_the_url_may_name_scenario_and_session(gateway: Service, name: str) -> None:
    path, body, *_ = CASES[name]
    record = gateway.record(gateway.chat(body, path=f"/s/work/run-1{path}?beta=true", x_reef_scenario="other"))
    assert (record.scenario, record.session, record.dialect) == ("work", "run-1", name)


def form(answer: Answer, name: str) -> dict[str, Any]:
    """The error of an answer, checked to be in the dialect's form."""
    assert set(answer.json) == ({"type", "error"} if name == "messages" else {"error"})
    assert answer.json.get("type", "error") == "error"
    assert answer.json["error"]["hint"]
    return answer.json["error"]


@pytest.mark.parametrize("name", ["chat", "messages", "responses"])
def test_every_refusal_is_in_the_callers_dialect(tmp_path: Path, fake: FakeUpstream, name: str) -> None:
    path = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}[name]
    with service(tmp_path, upstream=fake.url, upstream_section=ALL, auth=Auth(token="t")) as gateway:
        token = {"authorization": "Bearer t"}
        fake.replies = [Reply(silent=True, end="close")]
        refusals = [
            (gateway.request("POST", path, {}), 401, "authentication_error"),
            (gateway.request("POST", path, b"[", token), 400, "invalid_request_error"),
            (gateway.request("POST", path, {}, {**token, "x-reef-scenario": "../x"}), 400, "invalid_request_error"),
            (gateway.request("GET", path, None, token), 405, "method_not_allowed_error"),
            (gateway.request("POST", path, {}, token), 502, "upstream_error"),
        ]
        for answer, status, kind in refusals:
            assert (answer.status, form(answer, name)["type"]) == (status, kind)


@both
def test_a_dialect_the_upstream_does_not_speak_is_refused_with_what_to_set(tmp_path: Path, fake: FakeUpstream, name: str) -> None:
    path, body, *_ = CASES[name]
    with service(tmp_path, upstream=fake.url, upstream_section={"translate": False}) as gateway:
        answer = gateway.request("POST", path, body)
        assert answer.status == 400
        assert "upstream.dialects" in form(answer, name)["hint"]
        if name == "messages":
            assert gateway.request("POST", path + "/count_tokens", body).status == 400
        assert fake.seen == []


@both
def test_a_client_that_leaves_is_recorded_with_what_it_got(gateway: Service, fake: FakeUpstream, name: str) -> None:
    path, body, _, events = CASES[name]
    fake.replies = [stream(*events()[:3], end="hang")]
    connection = gateway.connect()
    connection.request("POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"})
    connection.getresponse().read(10)
    connection.sock.close() if connection.sock else None
    connection.close()
    assert fake.seen[0].hung_up.wait(5)
    record = until(lambda: gateway.store.records("default"))[0]
    assert record.end is End.CLIENT_GONE
    assert record.response["id"]


def test_the_providers_own_error_passes_through(gateway: Service, fake: FakeUpstream) -> None:
    said = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}, "request_id": "r"}
    fake.replies = [whole(said, status=429, headers={"retry-after": "3"})]
    answer = gateway.chat(MESSAGES, path="/v1/messages")
    assert (answer.status, answer.json, answer.headers["retry-after"]) == (429, said, "3")
    assert gateway.record(answer).end is End.UPSTREAM_ERROR


def test_an_error_with_status_200_is_no_answer(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [whole({"error": {"message": "no provider"}})]
    answer = gateway.chat()
    assert answer.status == 200
    assert gateway.record(answer).end is End.UPSTREAM_ERROR
