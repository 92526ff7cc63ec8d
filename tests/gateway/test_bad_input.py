"""What a caller can get wrong: each a clear JSON error with a hint."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from reef.gateway import bodies, wire
from reef.gateway.auth import Auth
from tests.support.gateway import CHAT, Answer, Service, service
from tests.support.upstream import FakeUpstream


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": NaN}', b"\xff", b'{"a": 1e999}', b"[]", b'"x"', b"[" * 100_000])
def test_malformed_json_is_a_400(gateway: Service, fake: FakeUpstream, body: bytes) -> None:
    answer = gateway.chat(body)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert not fake.seen
    assert "x-reef-agent-record-id" not in answer.headers


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "mine"}, {"x_api_key": "wrong"}])
def test_a_wrong_token_is_a_401_before_anything_else(tmp_path: Path, fake: FakeUpstream, headers: dict[str, str]) -> None:
    with service(tmp_path, upstream=fake.url, auth=Auth(token="mine")) as gateway:
        answer = gateway.chat(b"{", x_reef_scenario="../bad", **headers)
        assert (answer.status, answer.error["type"]) == (401, "authentication_error")
        assert answer.headers["www-authenticate"] == "Bearer"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for method, path in (("GET", "/reef/status"), ("GET", "/v1/models"), ("POST", "/reef/report"), ("GET", "/reef/records/x")):
            answer = gateway.request(method, path, {} if method == "POST" else None, named)
            assert (answer.status, answer.error["type"]) == (401, "authentication_error")
        assert gateway.chat(x_api_key="mine").status == 200
        assert gateway.request("GET", "/healthz").status == 200


def test_an_unknown_scenario_is_a_404_where_scenarios_are_not_made_by_use(tmp_path: Path, fake: FakeUpstream) -> None:
    with service(tmp_path, upstream=fake.url, scenarios={"implicit": False, "names": ["default"]}) as gateway:
        answer = gateway.chat(x_reef_scenario="other")
        assert (answer.status, answer.error["type"]) == (404, "not_found_error")
        assert "other" in answer.error["message"]
        assert gateway.request("POST", "/reef/report", {"session": "x"}, {"x-reef-scenario": "other"}).status == 404
        assert gateway.chat().status == 200


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "a b", "x" * 129, "é"])
def test_a_bad_name_is_a_400(gateway: Service, fake: FakeUpstream, name: str) -> None:
    for header in ("x_reef_scenario", "x_reef_session"):
        answer = gateway.chat(**{header: name})
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert not fake.seen


@pytest.mark.parametrize("path", ["/s/..%2fx/run/v1/chat/completions", "/s//run/v1/chat/completions", "/s/a/b/chat/completions", "/s/a"])
def test_a_bad_base_url_is_a_400(gateway: Service, path: str) -> None:
    assert gateway.chat(path=path).error["type"] == "invalid_request_error"


@pytest.mark.parametrize("release", ["x", "", "-1", "1.5", "0", "9" * 30])
def test_a_release_that_is_no_number_is_a_400(gateway: Service, release: str) -> None:
    answer = gateway.chat(x_reef_release=release)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert "x-reef-release" in answer.error["message"]


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_beyond_the_bound_is_a_413(gateway: Service, monkeypatch: pytest.MonkeyPatch, declared: bool) -> None:
    monkeypatch.setattr(wire, "MAX_BODY_BYTES", 1000)
    connection = gateway.connect()
    body = b"x" * 2000
    connection.request("POST", "/v1/chat/completions", body if declared else iter([body]))
    response = connection.getresponse()
    assert response.status == 413
    assert b"too_large_error" in response.read()
    connection.close()


@pytest.mark.parametrize("path", ["/reef/report", "/reef/sessions", "/healthz", "/nowhere"])
@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_no_route_wants_that_large_is_refused_before_it_is_parsed(gateway: Service, path: str, declared: bool) -> None:
    body = b'{"feedback": "' + b"x" * bodies.MOST_BYTES  # no JSON: whoever parses it says something else
    connection = gateway.connect()
    with contextlib.suppress(ConnectionError):  # it may be refused, and the rest not taken
        connection.request("POST", path, iter([body[: 2**20]] * 17) if not declared else body, {"content-type": "application/json"})
    answer = Answer(connection.getresponse())
    connection.close()
    assert (answer.status, answer.error["type"]) == (413, "too_large_error")
    assert "16 MiB" in answer.error["message"]


def test_a_large_report_and_a_larger_batch_have_room(gateway: Service) -> None:
    receipt = gateway.chat().receipt
    said = {"references": [receipt], "feedback": "y" * (bodies.MOST_BYTES - 1000)}
    assert gateway.request("POST", "/reef/report", said).status == 201
    line = {"request": {"model": "m", "messages": [{"role": "user", "content": "z" * (bodies.MOST_BYTES + 1000)}]}, "response": None}
    assert gateway.request("POST", "/reef/records/batch", line).status == 200


def test_unknown_paths_and_methods_are_json_too(gateway: Service) -> None:
    assert gateway.request("GET", "/nope").error["type"] == "not_found_error"
    assert gateway.request("GET", "/s/a/b/v1/nope").error["type"] == "not_found_error"
    for method, path in (("GET", "/v1/chat/completions"), ("DELETE", "/reef/status"), ("POST", "/v1/models")):
        answer = gateway.request(method, path)
        assert (answer.status, answer.error["type"]) == (405, "method_not_allowed_error")
        assert answer.headers["allow"]


def test_an_unknown_record_is_a_404(gateway: Service) -> None:
    answer = gateway.request("GET", "/reef/records/rec_none")
    assert answer.status == 404
    assert "rec_none" in answer.error["message"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"references": ["rec_none"]}, "rec_none"),
        ({"session": "none"}, "none"),
        ({}, "references"),
        ({"references": [], "score": 1}, "references"),
        ({"session": "s", "references": ["r"]}, "references"),
        ({"references": ["r"], "scor": 1}, "scor: unknown field"),
        ({"references": ["r"], "score": "high"}, "score"),
        ({"references": ["r"], "score": True}, "score"),
        ({"references": "r"}, "references"),
        ({"references": ["r"], "agent_record_id": "a b"}, "agent_record_id"),
        (b'{"references": ["r"], "score": NaN}', "score"),
        (b'{"references": ["r"], "score": 1e999}', "score"),
        (b"{", ""),
        (b"[]", ""),
    ],
)
def test_a_bad_report_is_refused_with_what_is_wrong_named(gateway: Service, body: object, named: str) -> None:
    answer = gateway.request("POST", "/reef/report", body)
    assert answer.status in (400, 404, 422)
    assert named in answer.error["message"]
    assert gateway.store.counts()["reports"] == 0


def test_a_receipt_of_another_scenario_is_unknown_here(gateway: Service) -> None:
    receipt = gateway.chat(CHAT, x_reef_scenario="one").receipt
    answer = gateway.request("POST", "/reef/report", {"references": [receipt], "score": 0}, {"x-reef-scenario": "two"})
    assert answer.status == 404
    assert receipt in answer.error["message"]
