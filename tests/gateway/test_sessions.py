"""Which session a request belongs to, and sessions over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.gateway.auth import Auth
from reef.gateway.correlation import AGENTS_OWN, agents_own_session
from tests.support import captures, dialects
from tests.support.gateway import Service, service
from tests.support.tokens import ADMIN, issue
from tests.support.upstream import FakeUpstream, upstream

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream(dialects.answer) as server:
        yield server


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    with service(tmp_path, upstream=fake.url, upstream_section={"dialects": ["chat", "responses", "messages"]}) as running:
        yield running


def session_of(gateway: Service, path: str = "/v1/chat/completions", **headers: str) -> str | None:
    answer = gateway.chat(BODY, path=path, **headers)
    assert answer.status == 200
    return gateway.record(answer).session


def test_the_base_url_goes_before_our_header_and_that_before_the_agents_own(gateway: Service) -> None:
    ours = {"x_reef_session": "ours", "session_id": "codex"}
    assert session_of(gateway, "/s/default/base/v1/chat/completions", **ours) == "base"
    assert session_of(gateway, **ours) == "ours"
    assert session_of(gateway, session_id="codex") == "codex"


@pytest.mark.parametrize("header", [name.decode() for name in AGENTS_OWN])
def test_the_session_header_of_an_agent_counts_and_what_is_no_name_is_passed_over(header: str) -> None:
    assert agents_own_session({header.encode(): b"019a-1"}) == "019a-1"
    assert agents_own_session({header.encode(): b"no name", b"x-session-affinity": b"ses_2"}) in ("ses_2", "")
    assert agents_own_session({}) == ""


def test_a_value_that_is_no_name_is_refused_in_our_header_and_passed_over_in_an_agents(gateway: Service) -> None:
    assert gateway.chat(BODY, x_reef_session="no name").status == 400
    found = session_of(gateway, session_id="no name")
    assert found is not None
    assert found.startswith("ses_")


def show(gateway: Service, session: str, **query: object) -> dict[str, object]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    answer = gateway.request("GET", f"/reef/scenarios/default/sessions/{session}?{asked}")
    assert answer.status == 200, answer.raw
    return answer.json


def test_runs_are_listed_and_told_with_their_side_calls(gateway: Service) -> None:
    receipts = []
    for item in captures.read("opencode.jsonl"):
        if item.run == "oc-run":
            receipts.append(gateway.request("POST", item.path, item.body, {"x-session-id": "run"}).receipt)
    gateway.request("POST", "/reef/sessions", {"session": "run", "adapter": "opencode", "release": 1})
    gateway.request("POST", "/reef/report", {"session": "run", "score": 0.5, "feedback": "so so"})
    listed = gateway.request("GET", "/reef/scenarios/default/sessions").json
    assert [(item["id"], item["adapter"], item["records"], item["score"]) for item in listed["sessions"]] == [("run", "opencode", 3, 0.5)]
    told = show(gateway, "run")
    assert [(thread["kind"], len(thread["exchanges"])) for thread in told["threads"]] == [("side call", 1), ("main", 2)]
    side, main = told["threads"]
    assert [item["record"] for item in (*side["exchanges"], *main["exchanges"])] == receipts
    assert [said["kind"] for said in main["exchanges"][0]["asked"]] == ["system", "system", "user"]
    assert [said["kind"] for said in main["exchanges"][1]["asked"]] == ["result"]
    assert [(item["score"], item["feedback"], item["references"]) for item in told["reports"]] == [(0.5, "so so", 3)]
    assert told["after"] is None


def test_a_long_run_comes_in_parts_that_make_the_whole(gateway: Service) -> None:
    history: list[dict[str, str]] = [{"role": "system", "content": "rules"}]
    for number in range(7):
        history.append({"role": "user", "content": f"step {number} " + "x" * 100})
        answer = gateway.chat({"model": "m", "messages": history}, x_reef_session="long").json
        history.append(answer["choices"][0]["message"])
    whole = show(gateway, "long")["threads"][0]["exchanges"]
    assert [len(item["asked"]) for item in whole] == [2, 1, 1, 1, 1, 1, 1]
    found, after = [], ""
    for _ in range(9):
        part = show(gateway, "long", limit=2, after=after)
        found += [item for thread in part["threads"] for item in thread["exchanges"]]
        after = part["after"]
        if after is None:
            break
    assert json.dumps(found) == json.dumps(whole)
    (said,) = show(gateway, "long", chars=30, limit=3)["threads"][0]["exchanges"][1]["asked"]
    assert said["chars"] == 107
    assert said["text"].startswith("step 1 ")
    assert "[… 77 characters left out …]" in said["text"]


def test_what_json_cannot_write_everywhere_is_told(gateway: Service) -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "half \\ud83d"}]}'
    gateway.request("POST", "/v1/chat/completions", body, {"x-reef-session": "odd"})
    answer = gateway.request("GET", "/reef/scenarios/default/sessions/odd")
    assert answer.status == 200
    assert b"half" in answer.raw


def test_an_unknown_session_is_said_to_be_one(gateway: Service) -> None:
    answer = gateway.request("GET", "/reef/scenarios/default/sessions/nobody")
    assert answer.status == 404
    assert "reef sessions" in answer.error["hint"]


def test_sessions_want_the_scope_read_and_a_bound_token_sees_its_own(tmp_path: Path, fake: FakeUpstream) -> None:
    with service(tmp_path, upstream=fake.url, auth=Auth(token="root")) as gateway:
        gateway.request("POST", "/v1/chat/completions", BODY, {**ADMIN, "x-reef-session": "theirs"})
        reads, infers = issue(gateway, "r", "read"), issue(gateway, "i", "infer")
        bound = issue(gateway, "b", "read", scenario="mine")
        for path in ("/reef/scenarios/default/sessions", "/reef/scenarios/default/sessions/theirs"):
            asked = [gateway.request("GET", path, headers=token).status for token in (reads, infers, bound, {})]
            assert asked == [200, 403, 403, 401]
