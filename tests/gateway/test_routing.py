"""A routing policy, as a head and on canary: which upstream answers which session, how it is recorded, and what a shadow of it finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reef.artifacts.tree import content_id
from reef.errors import InvalidTree
from reef.gateway.auth import Auth
from reef.learner.shadow import Again, Shadows
from reef.releases import mirror, rollout
from reef.releases.controller import Controller
from reef.releases.imports import bring_in
from reef.releases.live_reports import scored
from reef.releases.rollout import Mode, Plan
from reef.serving import policy
from reef.types import Candidate, CandidateState, Component, File
from tests.support.chain import GOOD
from tests.support.gateway import Service, service, until
from tests.support.tokens import issue
from tests.support.upstream import Reply, Seen, message, upstream, whole

CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls", "timeout": 5}'}}
SAME_CALL = {"id": "c2", "type": "function", "function": {"name": "bash", "arguments": '{"timeout":5,"command":"ls"}'}}
PLAN = Plan(mode=Mode.CANARY, share=0.5)
POLICY = {"routing.yaml": File(b"default: second/big\nmodels: {small: second/tiny}\n")}


def said(seen: Seen, *, call: dict[str, object]) -> Reply:
    """A tool call to who asks for one, and else the name of the model that was asked for."""
    if seen.path.endswith("/models"):
        return whole({"object": "list", "data": []})
    if "call" in str(seen.body["messages"]):
        return whole(message(None, tool_calls=[call]))
    return whole(message("hello" if "greet" in str(seen.body["messages"]) else seen.body["model"]))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Service]:
    with upstream(lambda seen: said(seen, call=CALL)) as first, upstream(lambda seen: said(seen, call=SAME_CALL)) as second:
        more = {"second": {"url": second.url}}
        auth = Auth(token=None, trial="trial-token")
        with service(tmp_path, upstream=first.url, upstream_section={"model": "own"}, upstreams=more, auth=auth) as running:
            until(lambda: running.state.scenarios.heads.get("default"))
            yield running


def proposed(gateway: Service, *, plan: Plan, component: Component = Component.ROUTING) -> Candidate:
    """A candidate with the policy, promoted by the gate."""
    controller = Controller(gateway.state.engine, gateway.state.artifacts, plan=plan)
    commit = gateway.state.artifacts.commit(POLICY, message="policy")
    candidate = controller.open_candidate(
        scenario="default", component=component, recipe="test", base_step=1, branch=mirror.candidate_branch("default", commit[:8]),
        commit=commit, content_id=content_id(POLICY), summary="Elsewhere", reports=(),
    )  # fmt: skip
    assert controller.settle(candidate, GOOD, expected_head=1) is None
    return candidate


def asked(gateway: Service, session: str, *, model: str = "reef", text: str = "hi", **headers: str) -> str:
    """Who answered."""
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    more = {"x_reef_session": session} if session else {}
    return gateway.chat(body, **more, **headers).json["choices"][0]["message"]["content"]


def one(candidate: Candidate, *, drawn: bool) -> str:
    return next(name for name in map("run-{}".format, range(99)) if rollout.drawn(candidate, name, share=PLAN.share) is drawn)


def test_where_nothing_is_planned_nothing_is_looked_at(gateway: Service) -> None:
    assert gateway.state.routing.plans == {}
    assert asked(gateway, "run-1") == "own"


def test_sessions_are_split_and_stay_where_they_are(gateway: Service) -> None:
    candidate = proposed(gateway, plan=PLAN)
    until(lambda: gateway.state.routing.plans)
    mine, other = one(candidate, drawn=True), one(candidate, drawn=False)
    for _ in range(3):
        assert (asked(gateway, mine), asked(gateway, other), asked(gateway, "")) == ("big", "own", "own")
    assert asked(gateway, mine, model="small") == "tiny"
    assert asked(gateway, mine, model="of-my-own") == "of-my-own", "the policy says nothing of it"
    assert asked(gateway, mine, authorization="Bearer trial-token") == "own"
    kept = {record.id: record for record in gateway.store.records("default", candidate=candidate.id)}
    assert {record.session for record in kept.values()} == {mine}
    assert len(kept) == 5
    first = next(iter(kept.values()))
    assert (first.request["model"], first.model, first.release) == ("reef", "big", None), "the record keeps what the caller sent"
    for session, score in ((mine, 1.0), (other, 0.0)):
        assert gateway.request("POST", "/reef/report", {"session": session, "score": score}).status == 201
    canary = rollout.canary(gateway.state.controller, "default")
    assert canary is not None
    assert canary.by_session
    assert [(report.on_candidate, report.score) for report in scored(gateway.state.engine, canary)] == [(False, 0.0)], (
        "trials were mixed in"
    )
    gateway.state.controller.reject(candidate.id)
    until(lambda: not gateway.state.routing.plans)
    assert asked(gateway, mine) == "own"


def test_a_session_of_users_alone_counts_for_the_candidate(gateway: Service) -> None:
    candidate = proposed(gateway, plan=PLAN)
    until(lambda: gateway.state.routing.plans)
    mine = one(candidate, drawn=True)
    asked(gateway, mine)
    gateway.request("POST", "/reef/report", {"session": mine, "score": 0.75})
    canary = rollout.canary(gateway.state.controller, "default")
    assert canary is not None
    assert [(report.on_candidate, report.score) for report in scored(gateway.state.engine, canary)] == [(True, 0.75)]


def test_what_survives_is_the_policy_of_all(gateway: Service) -> None:
    candidate = proposed(gateway, plan=PLAN)
    gateway.state.controller.promote(candidate.id)
    until(lambda: gateway.state.routing.plans.get("default") and gateway.state.routing.plans["default"].head)
    assert {asked(gateway, f"run-{number}") for number in range(5)} == {"big"}
    assert asked(gateway, "", authorization="Bearer trial-token") == "big"
    gateway.state.controller.rollback("default", 1)
    until(lambda: not gateway.state.routing.plans)
    assert asked(gateway, "run-1") == "own"


def test_heads_and_policies_are_read_from_one_snapshot(gateway: Service) -> None:
    state = gateway.state
    state.controller.promote(proposed(gateway, plan=PLAN).id)
    state.watch.stop()
    with state.engine.connect() as connection:
        state.tokens.refresh(connection)  # here the snapshot begins
        state.controller.rollback("default", 1)
        for _ in range(2):
            state.scenarios.refresh(connection)
            state.routing.refresh(connection)
            connection.rollback()
    assert state.scenarios.heads["default"] == 3
    assert not state.routing.plans, "the policy that was rolled back goes on"


def test_weights_on_canary_are_asked_for_by_the_name_they_are_staged_under(gateway: Service) -> None:
    candidate = proposed(gateway, plan=PLAN, component=Component.MODEL)
    until(lambda: gateway.state.routing.plans)
    assert asked(gateway, one(candidate, drawn=True)) == f"default.{candidate.id}"
    assert asked(gateway, one(candidate, drawn=False)) == "own"


@pytest.mark.parametrize("model", ["default.c-0123456789ab", "engine/default.c-0123456789ab", "judge/other.c-0123456789ab"])
def test_no_user_asks_for_what_is_not_judged_yet(gateway: Service, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    refused = gateway.chat(body)
    assert refused.status == 404
    assert "does not exist" in refused.json["error"]["message"]
    assert gateway.chat(body, authorization="Bearer trial-token").status == 200
    assert gateway.chat({**body, "model": "other.c-suite"}).status == 200, "a model of somebody's own"


def test_no_scenario_is_answered_by_the_weights_of_another(tmp_path: Path) -> None:
    """Whoever may ask as one of them alone must not read out of a model what the traffic of the others made of it."""
    with upstream(lambda seen: said(seen, call=CALL)) as other, upstream(lambda seen: said(seen, call=CALL)) as engine:
        sections = {"serving": {"vllm": {"attach": engine.url, "name": "tiny"}}, "upstreams": {"second": {"url": other.url}}}
        names = {"names": ["mine", "theirs", "theirs.own", "gpt-4"]}
        models = {"shared": ["engine/theirs.3"], "gpt-4.1": ["second/gpt-4.1"]}
        auth = Auth(token="root", trial="trial-token")
        with service(tmp_path, upstream="", scenarios=names, models=models, auth=auth, **sections) as gateway:
            until(lambda: set(names["names"]) <= gateway.state.scenarios.heads.keys())
            bound = issue(gateway, "bound", "infer", scenario="mine")

            def ask(model: str, **headers: str) -> int:
                body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                return gateway.chat(body, **{**bound, "x_reef_scenario": "mine", **headers}).status

            for model in ("theirs.3", "engine/theirs.3", "theirs.own.12", "engine/theirs.own.12", "judge/theirs.3"):
                assert ask(model) == 404, model
                assert ask(model, authorization="Bearer root") == 404, model
            assert not [seen for seen in engine.seen if seen.method == "POST"]
            assert ask("theirs.3", authorization="Bearer root", x_reef_scenario="theirs") == 200, "its own"
            for model in ("mine.3", "engine/mine.2", "tiny", "qwen.2", "theirs.3b", "theirs", "mine.theirs", "second/theirs.3"):
                assert ask(model) == 200, model
            assert ask("shared") == 200, "whoever runs the service has it so"
            assert ask("gpt-4.1") == 200, "it is not on the engine, whatever a scenario is called"
            assert ask("theirs.3", authorization="Bearer trial-token") == 200, "a grader's model is the service's choice"


def test_a_policy_that_cannot_be_used_leaves_requests_where_they_went(gateway: Service) -> None:
    bring_in(gateway.state.controller, "default", Component.ROUTING, {"routing.yaml": File(b"defaults: x\n")}, summary="Typo")
    until(lambda: gateway.state.scenarios.heads["default"] == 2)
    assert asked(gateway, "run-1") == "own"
    for text in (b"defaults: x", b"models: [1]", b"{", b"\xff"):
        with pytest.raises(InvalidTree):
            policy.read({"routing.yaml": File(text)})
    with pytest.raises(InvalidTree):
        policy.read({})


def test_a_client_says_which_candidate_it_runs(gateway: Service) -> None:
    answer = gateway.chat(x_reef_release="c-0123456789ab")
    record = gateway.record(answer)
    assert (record.candidate, record.release) == ("c-0123456789ab", None)
    assert gateway.request("GET", "/reef/scenarios/default/records?candidate=c-0123456789ab").json["records"][0]["id"] == record.id
    for nonsense in ("c-012", "c-0123456789AB", "c-0123456789abc"):
        assert gateway.chat(x_reef_release=nonsense).status == 400


def test_a_shadow_asks_recorded_requests_again_and_holds_the_candidate(gateway: Service) -> None:
    for session, text in (("run-1", "greet"), ("run-2", "call"), ("run-3", "who")):
        asked(gateway, session, text=text)
    candidate = proposed(gateway, plan=replace(PLAN, mode=Mode.SHADOW))
    shadows = Shadows(
        controller=gateway.state.controller,
        store=gateway.store,
        tasks=(),
        tools=lambda: pytest.fail("no agent is run for a routing policy"),
        ask=Again(gateway.store, url=gateway.url, token="trial-token", timeout_s=20),
        tell=lambda _activity: None,
    )
    assert shadows.work_once()
    assert not shadows.work_once()
    now = gateway.state.controller.candidate(candidate.id)
    assert now.state is CandidateState.HELD
    assert "the same answer in 2 of 3" in now.reason
    assert gateway.state.controller.head("default").step == 1
    ended = rollout.of(gateway.state.controller, candidate.id)
    assert ended is not None
    assert ended.finding is not None
    found = {answer["session"]: (answer["agrees"], answer["detail"]) for answer in ended.finding["answers"]}
    assert found == {"run-1": (True, ""), "run-2": (True, ""), "run-3": (False, "other text")}
    assert gateway.request("GET", f"/reef/candidates/{candidate.id}").json["rollout"]["finding"]["summary"].startswith("the same")
    asked_again = gateway.request("POST", "/reef/scenarios/default/replays", {"session": "run-3", "candidate": candidate.id})
    assert asked_again.status == 202
    path = f"/reef/scenarios/default/replays/{asked_again.json['id']}"
    assert gateway.request("GET", path).json["finding"] is None
    assert shadows.work_once()
    assert gateway.request("GET", path).json["finding"]["answers"][0]["candidate"] == "big"
    for body in ({"session": "nobody"}, {"session": "run-1", "candidate": "c-000000000000"}):
        assert gateway.request("POST", "/reef/scenarios/default/replays", body).status == 404


def test_an_upstream_that_does_not_answer_is_no_disagreement(gateway: Service, tmp_path: Path) -> None:
    asked(gateway, "run-1", text="greet")
    proposed(gateway, plan=replace(PLAN, mode=Mode.SHADOW))
    gone = Again(gateway.store, url="http://127.0.0.1:1", token="", timeout_s=5)
    shadows = Shadows(
        controller=gateway.state.controller, store=gateway.store, tasks=(), tools=lambda: pytest.fail("none"), ask=gone,
        tell=lambda _activity: None,
    )  # fmt: skip
    assert shadows.work_once()
    held = gateway.state.controller.candidates("default")[0]
    assert "1 without an answer" in held.reason
