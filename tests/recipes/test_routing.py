"""A choice among upstreams learns where each is good: real gateway, real upstreams, real chain."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipes.routing.recipe import RoutingRecipe
from reef import config as configuration
from reef.errors import ConfigError, InvalidTree
from reef.gateway.auth import Auth
from reef.learner.loop import Learner
from reef.learner.routing_judge import RoutingJudge
from reef.releases.imports import bring_in
from reef.serving import policy
from reef.serving.choosing import features
from reef.types import CandidateState, Component, File
from tests.learner.test_loop import NoModel
from tests.support.gateway import Service, service, until
from tests.support.service import serving, wait_for
from tests.support.upstream import Reply, Seen, message, upstream, whole

EXAMPLE = Path(__file__).parents[2] / "recipes" / "routing" / "examples" / "routing"
FIRST = {
    policy.FILE: File(
        b"choose:\n  worth: 2000\n  names: [auto]\n  arms:\n"
        b"    large/big: {price_in: 10, price_out: 10}\n    small/tiny: {price_in: 1, price_out: 1}\n"
    )
}
EASY, HARD = "Translate this word, please", "```\ndef f(x): return g(x, x)\n```\nWhere is the mistake?"


def answers(seen: Seen, *, able: bool) -> Reply:
    """One that is always right, or only where there is no code."""
    if seen.path.endswith("/models"):
        return whole({"object": "list", "data": []})
    right = able or "```" not in str(seen.body["messages"])
    return whole(message("right" if right else "wrong", usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Service]:
    with upstream(lambda seen: answers(seen, able=True)) as large, upstream(lambda seen: answers(seen, able=False)) as small:
        more = {"large": {"url": large.url}, "small": {"url": small.url}}
        with service(tmp_path, upstream=small.url, upstreams=more, auth=Auth(token=None)) as running:
            until(lambda: running.state.scenarios.heads.get("default"))
            yield running


class Traffic:
    """Sessions of users, and what they say of the answers."""

    def __init__(self, gateway: Service) -> None:
        self.gateway = gateway
        self.number = 0

    def session(self, text: str, *, report: bool = True, model: str = "auto") -> str:
        """One; returns who answered."""
        self.number += 1
        name = f"run-{self.number}"
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        answer = self.gateway.chat(body, x_reef_session=name)
        if report:
            score = float(answer.json["choices"][0]["message"]["content"] == "right")
            assert self.gateway.request("POST", "/reef/report", {"session": name, "score": score}).status == 201
        return self.gateway.record(answer).model


def learner(gateway: Service, *, batch_size: int) -> Learner:
    state = gateway.state
    config = configuration.load(
        upstreams={"large": {"url": "http://x/v1"}, "small": {"url": "http://y/v1"}}, evaluation={"min_effect": 0.05}
    )
    return Learner(
        recipe=RoutingRecipe(batch_size=batch_size, options={"explore": 0.1, "penalty": 0.1}),
        store=gateway.store,
        artifacts=state.artifacts,
        controller=state.controller,
        judge=RoutingJudge(config=config, controller=state.controller, store=gateway.store),
        model_for=lambda _scenario: NoModel(),
        adapter="pi",
        max_staleness=5,
    )


def test_each_kind_of_request_ends_with_whom_it_suits(gateway: Service) -> None:
    state, traffic = gateway.state, Traffic(gateway)
    bring_in(state.controller, "default", Component.ROUTING, FIRST, summary="Try both")
    until(lambda: state.routing.plans)
    at_work = learner(gateway, batch_size=80)
    dice = random.Random(1)
    until(
        lambda: (traffic.session(dice.choice((EASY, HARD))), at_work.work_once())[1] and state.controller.candidates("default"), within_s=60
    )
    (candidate,) = state.controller.candidates("default")
    verdict = state.controller.verdict(candidate.id)
    assert verdict is not None
    assert candidate.state is CandidateState.RELEASED, verdict.reason
    assert verdict.effect > 0.2
    assert state.controller.verify("default") == []
    until(lambda: state.scenarios.heads["default"] == 3)
    after = {text: Counter(traffic.session(text, report=False) for _ in range(60)) for text in (EASY, HARD)}
    assert after[HARD]["big"] > 0.8 * 60, "the better one gets most of what only it can do"
    assert after[EASY]["tiny"] > 0.8 * 60, "where the cheaper one is as good it is asked"
    assert after[HARD]["tiny"] + after[EASY]["big"], "and exploring goes on"


def test_what_is_no_better_than_the_head_is_not_released(gateway: Service) -> None:
    state, traffic = gateway.state, Traffic(gateway)
    settled = {policy.FILE: File(FIRST[policy.FILE].data.replace(b"  worth: 2000\n", b"  explore: 0.5\n"))}
    bring_in(state.controller, "default", Component.ROUTING, settled, summary="Both are as good here")
    until(lambda: state.routing.plans)
    at_work = learner(gateway, batch_size=40)
    until(lambda: (traffic.session(EASY), at_work.work_once())[1] and state.controller.candidates("default"), within_s=60)
    assert state.controller.candidates("default")[0].state in {CandidateState.REJECTED, CandidateState.INCONCLUSIVE}
    assert state.controller.head("default").step == 2


def test_reports_on_what_nobody_chose_are_passed_over(gateway: Service) -> None:
    state, traffic = gateway.state, Traffic(gateway)
    at_work = learner(gateway, batch_size=2)
    for _ in range(2):
        traffic.session(EASY, model="reef")
    assert at_work.work_once(), "there is no policy yet"
    assert not gateway.store.unconsumed_reports("default", "routing")
    bring_in(state.controller, "default", Component.ROUTING, FIRST, summary="Try both")
    until(lambda: state.routing.plans)
    for _ in range(2):
        traffic.session(EASY, model="small/tiny")
    assert at_work.work_once(), "the callers chose"
    assert state.controller.candidates("default") == []


def test_a_session_stays_where_it_is_and_one_without_a_name_goes_to_the_best(gateway: Service) -> None:
    state = gateway.state
    bring_in(state.controller, "default", Component.ROUTING, FIRST, summary="Try both")
    until(lambda: state.routing.plans)
    turns = [{"role": "user", "content": EASY}]
    seen = set()
    for _ in range(4):
        answer = gateway.chat({"model": "auto", "messages": turns}, x_reef_session="long")
        seen.add(gateway.record(answer).model)
        turns = [*turns, answer.json["choices"][0]["message"], {"role": "user", "content": "```and now```" * len(turns)}]
    assert len(seen) == 1
    answers = [gateway.chat({"model": "auto", "messages": turns}) for _ in range(5)]
    assert {gateway.record(answer).model for answer in answers} == {"big"}, "the first of equals"


def test_the_whole_service_learns_that_the_cheaper_of_equals_will_do(tmp_path: Path) -> None:
    policy_folder = tmp_path / "policy"
    policy_folder.mkdir()
    dear = (
        "choose:\n  worth: 2000\n  most_penalty: 0.5\n  arms:\n"
        "    large/a: {price_in: 30, price_out: 30}\n    small/b: {price_in: 0.1, price_out: 0.1}\n"
    )
    (policy_folder / policy.FILE).write_text(dear)
    settings = [text for part in ("reef.batch_size=80", "reef.poll_interval_s=0.1") for text in ("--set", part)]
    with serving(tmp_path, "-c", str(EXAMPLE / "serve.yaml"), *settings) as whole_service:
        wait_for(lambda: whole_service.get("/reef/scenarios")["scenarios"], "the scenario to exist")
        command = [sys.executable, "-m", "reef", "release", "import", str(policy_folder), "--set", f"storage.dir={whole_service.state}"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

        numbers = itertools.count()

        def settled() -> list[dict[str, object]]:
            session = f"run-{next(numbers)}"
            body = {"model": "reef", "messages": [{"role": "user", "content": "hello"}]}
            whole_service.post(f"/s/default/{session}/v1/chat/completions", body)
            whole_service.post("/reef/report", {"session": session, "score": 1.0})
            found = whole_service.get("/reef/scenarios/default/candidates")["candidates"]
            return [one for one in found if one["state"] not in {"proposed", "judging"}]

        (candidate, *_) = wait_for(settled, "a policy to be judged", within_s=60)
        assert candidate["state"] == "released", candidate["reason"]


def test_a_policy_with_an_arm_that_is_nowhere_is_refused(gateway: Service) -> None:
    at = RoutingJudge(
        config=configuration.load(upstreams={"large": {"url": "http://x/v1"}}), controller=gateway.state.controller, store=gateway.store
    )
    with pytest.raises(InvalidTree, match="small/tiny"):
        at.admit(FIRST, base={})


@pytest.mark.parametrize(
    "text",
    [
        "choose: {arms: {a/b: {}}}",
        "choose: {arms: {a/b: {}, c: {}}}",
        "choose: {explore: 0, arms: {a/b: {}, a/c: {}}}",
        "choose: {worth: 1, arms: {a/b: {}, a/c: {}}}",
        "choose: {arms: {a/b: {weights: [1]}, a/c: {}}}",
        "choose: {arms: {a/b: {weights: [.nan, 0, 0, 0, 0]}, a/c: {}}}",
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(text: str) -> None:
    with pytest.raises(InvalidTree):
        policy.read({policy.FILE: File(text.encode())})


def test_features_are_those_of_the_first_message_in_every_dialect() -> None:
    chat = {
        "messages": [{"role": "system", "content": "```"}, {"role": "user", "content": HARD}, {"role": "user", "content": "x"}],
        "tools": [{}],
    }
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": HARD}]}], "tools": [{}]}
    responses = {"input": HARD, "tools": [{}]}
    items = {"input": [{"role": "user", "content": [{"type": "input_text", "text": HARD}]}], "tools": [{}]}
    assert features(chat) == features(parts) == features(responses) == features(items)
    assert features(chat)[2:] == (1.0, 1.0, 1.0)
    for odd in ({}, {"messages": 3}, {"messages": ["x", {"role": "user", "content": 7}]}, {"input": [{"role": "user", "content": [1]}]}):
        assert features(odd) == (1.0, 0.0, 0.0, 0.0, 0.0)


def test_the_example_can_be_read_and_unknown_options_are_refused() -> None:
    config = configuration.load(EXAMPLE / "serve.yaml")
    read = policy.read({policy.FILE: File((EXAMPLE / "policy" / policy.FILE).read_bytes())})
    assert read.choose is not None
    assert {arm.partition("/")[0] for arm in read.choose.arms} <= config.named_upstreams.keys()
    RoutingRecipe(batch_size=config.reef.batch_size, options=config.reef.options)
    with pytest.raises(ConfigError, match="explor"):
        RoutingRecipe(batch_size=2, options={"explor": 1})
