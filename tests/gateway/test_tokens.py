"""Tokens: each route wants its scope, what is revoked ends everywhere at once, and nothing of it waits for a database."""

from __future__ import annotations

import asyncio
import hmac
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI

from reef.experience.tokens import SCOPES
from reef.gateway import faults, token_index
from reef.gateway.auth import CALLER, Auth, Caller, require
from reef.types import Origin
from tests.support.gateway import CHAT, Answer, Service, service, until
from tests.support.tokens import ADMIN, issue
from tests.support.upstream import FakeUpstream

PUBLIC = {("get", "/healthz")}


@pytest.fixture
def guarded(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    dialects = {"dialects": ["chat", "responses", "messages"]}
    with service(tmp_path, upstream=fake.url, upstream_section=dialects, auth=Auth(token="root")) as gateway:
        until(lambda: "default" in gateway.state.scenarios.heads)
        yield gateway


def routes(gateway: Service) -> list[tuple[str, str]]:
    paths = gateway.request("GET", "/openapi.json").json["paths"]
    return sorted((method, path) for path, methods in paths.items() for method in methods if (method, path) not in PUBLIC)


def call(gateway: Service, method: str, path: str, headers: dict[str, str]) -> Answer:
    """A call of a route with a name in every place for one."""
    filled = re.sub(r"\{(\w+)\}", lambda match: "default" if match[1] == "scenario" else "x", path)
    return gateway.request(method.upper(), filled, None if method == "get" else {}, headers)


def test_every_route_refuses_no_token_and_any_token_without_its_scope(guarded: Service) -> None:
    tokens = {scope: issue(guarded, scope, scope) for scope in SCOPES}
    wanted = {}
    for method, path in routes(guarded):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "reef_000000000000_x"}):
            refused = call(guarded, method, path, headers)
            assert refused.status == 401, (method, path)
        answers = {scope: call(guarded, method, path, headers) for scope, headers in tokens.items()}
        assert not any(answer.status in (401, 500) for answer in answers.values()), (method, path)
        open_to = [scope for scope, answer in answers.items() if answer.status != 403]
        assert len(open_to) == 1, (method, path, open_to)
        wanted[f"{method} {path}"] = open_to[0]
    assert {scope for route, scope in wanted.items() if "/v1/" in route} == {"infer"}
    assert {scope for route, scope in wanted.items() if "/reef/harness" in route} == {"harness"}
    assert {scope for route, scope in wanted.items() if "/reef/tokens" in route} == {"admin"}
    assert wanted["post /reef/report"] == wanted["post /reef/sessions"] == "report"
    assert wanted["post /reef/scenarios/{scenario}/rollback"] == wanted["post /reef/scenarios"] == "admin"
    assert wanted["get /reef/records/{record}"] == "read"


def test_a_route_that_names_no_scenario_is_closed_to_a_bound_token_without_a_word_in_it() -> None:
    app = FastAPI()
    faults.install(app)

    @app.get("/reef/new", dependencies=[Depends(require("read"))])
    def about_everything() -> str:
        return "secrets of all scenarios"

    @app.get("/reef/new/{scenario}", dependencies=[Depends(require("read"))])
    def about_one(scenario: str) -> str:
        return f"secrets of {scenario}"

    async def status(path: str) -> int:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(event: Any) -> None:
            sent.append(event)

        caller = Caller(frozenset({"read"}), Origin.USER, scenario="mine")
        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", CALLER: caller}
        await app(scope, receive, send)
        return sent[0]["status"]

    assert [asyncio.run(status(path)) for path in ("/reef/new", "/reef/new/theirs", "/reef/new/mine")] == [403, 403, 200]


def test_a_bound_token_stays_in_its_scenario(guarded: Service, fake: FakeUpstream) -> None:
    theirs = guarded.chat(x_reef_scenario="theirs", x_reef_session="run", **ADMIN).receipt
    until(lambda: "theirs" in guarded.state.scenarios.heads)
    report = guarded.request("POST", "/reef/report", {"references": [theirs]}, {**ADMIN, "x-reef-scenario": "theirs"}).json
    bound = issue(guarded, "bound", *SCOPES, scenario="mine")
    mine = guarded.chat(**bound)
    assert guarded.record(mine).scenario == "mine", "a bound token that names no scenario means its own"
    until(lambda: "mine" in guarded.state.scenarios.heads)
    asked = len(fake.seen)
    for answer in (
        guarded.chat(x_reef_scenario="theirs", **bound),
        guarded.chat(path="/s/theirs/run/v1/chat/completions", **bound),
        guarded.request("GET", "/s/theirs/run/v1/models", headers=bound),
        guarded.request("GET", f"/reef/records/{theirs}", headers=bound),
        guarded.request("GET", f"/reef/reports/{report['agent_record_id']}", headers=bound),
        guarded.request("GET", "/reef/scenarios/theirs/records", headers=bound),
        guarded.request("GET", "/reef/scenarios/theirs/reports", headers=bound),
        guarded.request("GET", "/reef/scenarios/theirs/releases", headers=bound),
        guarded.request("GET", "/reef/scenarios/theirs/records", headers={**bound, "x-reef-scenario": "mine"}),
        guarded.request("POST", "/reef/scenarios/theirs/rollback", {"step": 1}, bound),
        guarded.request("GET", "/reef/harness/head?scenario=theirs", headers=bound),
        guarded.request("GET", "/reef/harness/head?scenario=theirs&scenario=mine", headers=bound),
        guarded.request("GET", "/reef/harness?scenario=mine", headers={**bound, "x-reef-scenario": "theirs"}),
        guarded.request("POST", "/reef/report", {"session": "run"}, {**bound, "x-reef-scenario": "theirs"}),
        guarded.request("POST", "/reef/sessions", {"session": "s", "adapter": "pi"}, {**bound, "x-reef-scenario": "theirs"}),
        guarded.request("GET", "/reef/status", headers=bound),
        guarded.request("GET", "/reef/scenarios", headers=bound),
        guarded.request("POST", "/reef/scenarios", {"name": "more"}, bound),
        guarded.request("POST", "/reef/tokens", {"name": "more", "scopes": ["admin"]}, bound),
    ):
        assert (answer.status, answer.error["type"]) == (403, "permission_error")
    assert len(fake.seen) == asked
    assert guarded.request("POST", "/reef/report", {"references": [theirs]}, bound).status == 404
    assert guarded.request("POST", "/reef/report", {"references": [mine.receipt], "score": 1}, bound).json["scenario"] == "mine"
    for path in (
        f"/reef/records/{mine.receipt}",
        "/reef/scenarios/mine/records",
        "/reef/harness/head",
        "/v1/models",
        "/reef/harness/adapters",
    ):
        assert guarded.request("GET", path, headers=bound).status == 200, path
    assert guarded.request("GET", "/reef/harness/head", headers=bound).status == 200
    assert guarded.chat(path="/s/mine/run/v1/chat/completions", **bound).status == 200


def test_of_two_scenario_headers_none_may_be_anothers(guarded: Service) -> None:
    bound = issue(guarded, "bound", *SCOPES, scenario="mine")
    for first, second in (("mine", "theirs"), ("theirs", "mine")):
        for method, path in (("POST", "/v1/chat/completions"), ("POST", "/reef/report"), ("GET", "/reef/harness/head")):
            connection = guarded.connect()
            connection.putrequest(method, path)
            connection.putheader("content-length", "0")
            connection.putheader("authorization", bound["authorization"])
            connection.putheader("x-reef-scenario", first)
            connection.putheader("x-reef-scenario", second)
            connection.endheaders()
            assert connection.getresponse().status == 403
            connection.close()


def test_a_token_gives_only_scopes_that_it_has(guarded: Service) -> None:
    issue(guarded, "full", *SCOPES)
    admin = issue(guarded, "admin", "admin")
    refused = guarded.request("POST", "/reef/tokens", {"name": "x", "scopes": ["infer", "admin"]}, admin)
    assert (refused.status, "infer" in refused.error["message"]) == (403, True)
    assert guarded.request("POST", "/reef/tokens/full/rotate", {}, admin).status == 403
    issue(guarded, "second", "admin", headers=admin)


@pytest.mark.alone
def test_a_revoked_token_ends_within_100_ms_in_every_gateway(tmp_path: Path, fake: FakeUpstream) -> None:
    storage = {"url": f"sqlite:///{tmp_path / 'shared.db'}"}
    with (
        service(tmp_path / "a", upstream=fake.url, auth=Auth(token="root"), storage_section=storage) as one,
        service(tmp_path / "b", upstream=fake.url, auth=Auth(token="root"), storage_section=storage) as other,
    ):
        took = []
        for _ in range(5):
            token = issue(one, "leaked", "infer")
            until(lambda token=token: other.chat(**token).status == 200)
            assert one.chat(**token).status == 200
            assert one.request("POST", "/reef/tokens/leaked/revoke", {}, ADMIN).status == 200
            began = time.monotonic()
            assert one.chat(**token).status == 401
            until(lambda token=token: other.chat(**token).status == 401)
            took.append(time.monotonic() - began)
        assert sorted(took)[2] < 0.1, took


def test_rotation_gives_a_new_secret_for_the_same_rights_and_ends_the_old(guarded: Service) -> None:
    old = issue(guarded, "ci", "infer", scenario="mine", requests_per_minute=50)
    answer = guarded.request("POST", "/reef/tokens/ci/rotate", {}, ADMIN)
    new = {"authorization": f"Bearer {answer.json['secret']}"}
    assert answer.headers["cache-control"] == "no-store"
    assert (guarded.chat(**old).status, guarded.chat(**new).status) == (401, 200)
    shown = guarded.request("GET", "/reef/tokens", headers=ADMIN).json["tokens"]
    assert [(token["name"], token["usable"], token["scenario"], token["requests_per_minute"]) for token in shown] == [
        ("ci", False, "mine", 50),
        ("ci", True, "mine", 50),
    ]
    for path in ("/reef/tokens/nobody/revoke", "/reef/tokens/nobody/rotate"):
        assert guarded.request("POST", path, {}, ADMIN).error["type"] == "not_found_error"
    assert guarded.request("POST", "/reef/tokens", {"name": "ci", "scopes": ["infer"]}, ADMIN).status == 409


def test_an_expired_token_is_refused(guarded: Service) -> None:
    token = issue(guarded, "short", "infer", expires_in_days=0.2 / 86_400)
    until(lambda: guarded.chat(**token).status == 401)
    assert not guarded.request("GET", "/reef/tokens", headers=ADMIN).json["tokens"][0]["usable"]


def test_an_open_service_does_not_take_a_revoked_token_for_full_access(tmp_path: Path, fake: FakeUpstream) -> None:
    with service(tmp_path, upstream=fake.url) as gateway:
        token = issue(gateway, "t", "infer", headers={})
        assert gateway.request("GET", "/reef/status", headers=token).status == 403
        gateway.request("POST", "/reef/tokens/t/revoke", {})
        assert gateway.chat(**token).status == 401
        assert gateway.chat(authorization="Bearer any").status == 200


@pytest.mark.parametrize(
    "body",
    [
        {"scopes": ["infer"]},
        {"name": "x"},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["all"]},
        {"name": "a b", "scopes": ["infer"]},
        {"name": "x", "scopes": ["infer"], "scenario": "../x"},
        {"name": "x", "scopes": ["infer"], "expires_in_days": 0},
        {"name": "x", "scopes": ["infer"], "expires_in_days": 1e300},
        {"name": "x", "scopes": ["infer"], "requests_per_minute": 0},
        {"name": "x", "scopes": ["infer"], "concurrent": 10**30},
        {"name": "x", "scopes": ["infer"], "more": 1},
    ],
)
def test_a_bad_request_for_a_token_is_refused(guarded: Service, body: dict[str, Any]) -> None:
    answer = guarded.request("POST", "/reef/tokens", body, ADMIN)
    assert answer.status in (400, 422)
    assert answer.error
    assert guarded.request("GET", "/reef/tokens", headers=ADMIN).json == {"tokens": []}


def test_a_secret_is_stored_nowhere_and_listed_nowhere(guarded: Service, tmp_path: Path) -> None:
    token = issue(guarded, "t", "infer", "read")
    secret = token["authorization"].removeprefix("Bearer ")
    guarded.chat(**token)
    guarded.chat({**CHAT, "messages": [{"role": "user", "content": f"my token is {secret}"}]}, **token)
    assert secret not in guarded.request("GET", "/reef/tokens", headers=ADMIN).raw.decode()
    for file in (tmp_path / ".reef").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file


def test_incident_sql_injection_before_authentication(guarded: Service, tmp_path: Path) -> None:
    """A gateway of the field ran the text of a wrong key as SQL, in the error path of its key check."""
    kept = issue(guarded, "kept", "infer")
    database = next((tmp_path / ".reef").glob("*.db"))
    with sqlite3.connect(database) as raw:
        before = raw.execute("SELECT * FROM tokens").fetchall()
    for text in (
        "' OR '1'='1",
        "'; DROP TABLE tokens; --",
        "reef_' OR 1=1 --_x",
        'reef_"; DELETE FR_x',
        "reef_000000000000_' UNION SELECT * FROM tokens --",
        "reef_",
        "reef_%%%%%%%%%%%%_%",
    ):
        for headers in ({"authorization": f"Bearer {text}"}, {"x-api-key": text}):
            for method, path in (("POST", "/v1/chat/completions"), ("GET", "/reef/tokens"), ("GET", "/reef/status"), ("GET", "/nowhere")):
                answer = guarded.request(method, path, CHAT if method == "POST" else None, headers)
                assert (answer.status, answer.error["type"]) == (401, "authentication_error")
                assert text not in answer.error["message"]
        name = text.replace("'", "%27").replace(" ", "%20").replace('"', "%22").replace(";", "%3B")
        assert guarded.request("POST", f"/reef/tokens/{name}/revoke", {}, ADMIN).status in (400, 404)
        assert guarded.request("POST", "/reef/tokens", {"name": text, "scopes": ["infer"]}, ADMIN).status in (201, 400)
    with sqlite3.connect(database) as raw:
        assert set(before) <= set(raw.execute("SELECT * FROM tokens").fetchall())
    assert guarded.chat(**kept).status == 200


def test_who_calls_is_decided_without_a_database_and_in_constant_time(guarded: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    token = issue(guarded, "t", "infer")
    guarded.state.watch.stop()
    guarded.state.engine.dispose()

    def no_database() -> None:
        raise AssertionError("a query on the way to a 401")

    monkeypatch.setattr(guarded.state.engine, "connect", no_database)
    monkeypatch.setattr(guarded.state.engine, "raw_connection", no_database)
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(token_index.hmac, "compare_digest", lambda left, right: compared.append((left, right)) or real(left, right))
    secret = token["authorization"].removeprefix("Bearer ")
    for wrong in ("wrong", "reef_000000000000_x", secret[:-1], secret + "x", secret[:18] + "x" * 43):
        compared.clear()
        for path in ("/reef/tokens", "/reef/records/x", "/reef/scenarios/default/records"):
            assert guarded.request("GET", path, headers={"x-api-key": wrong}).status == 401
        assert guarded.chat(x_api_key=wrong).status == 401
        assert compared, "an unknown id is compared as well"
    assert guarded.request("GET", "/reef/status", headers=token).status == 403, "a known token is known without one, too"
    monkeypatch.undo()
