"""Batches out of sessions of real coding agents: their captured requests through the gateway, answered by an engine that gives tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reef.experience import schema
from reef.training.batches import Batch, Terms
from reef.training.batches_reader import read
from tests.support import captures
from tests.support.gateway import Answer, Service, service
from tests.support.upstream import Reply, Seen, chunk, stream, upstream

AGENTS = ("pi-1.6.0.jsonl", "qwen-code-0.24.4.jsonl", "opencode.jsonl", "openclaw.jsonl")
START, END = 256, 257
TERMS = Terms(parent=3, max_staleness=2)


class Engine:
    """Answers as vLLM does, with the tokens of a template over bytes.

    It says what the agent's own history holds next, so that the history is right; where there is no next request, it says "done".
    """

    def __init__(self) -> None:
        self.model = "default.3"
        self.next: dict[str, Any] = {}
        self.tidy = False
        """Whether the template renders a tool call of the history in another way than it was generated."""

    def follow(self, requests: Sequence[captures.Captured]) -> None:
        for request in requests:
            messages = request.body["messages"]
            for place, message in enumerate(messages):
                if message["role"] == "assistant":
                    self.next[json.dumps(messages[:place])] = message

    def __call__(self, seen: Seen) -> Reply:
        assert seen.body["return_token_ids"] is True
        messages = seen.body["messages"]
        answer = self.next.get(json.dumps(messages), {"role": "assistant", "content": "done"})
        calls = [{"index": place, **call} for place, call in enumerate(answer.get("tool_calls") or ())]
        tokens = [*_said(answer), END]
        logprobs = {"content": [{"token": "t", "logprob": -0.001 * (place + 1)} for place in range(len(tokens))]}
        delta = {"role": "assistant", "content": answer.get("content"), **({"tool_calls": calls} if calls else {})}
        events = [
            self._event({"role": "assistant", "content": ""}, prompt_token_ids=self._prompt(messages)),
            self._event(delta, choice={"token_ids": tokens, "logprobs": logprobs}),
            self._event({}, choice={"finish_reason": "tool_calls" if calls else "stop"}),
        ]
        return stream(*events, b"data: [DONE]\n\n")

    def _event(self, delta: dict[str, Any], *, choice: dict[str, Any] | None = None, **more: Any) -> bytes:
        told = json.loads(chunk(delta, **more).removeprefix(b"data: "))
        told["choices"][0] |= choice or {}
        return b"data: " + json.dumps({**told, "model": self.model}).encode() + b"\n\n"

    def _prompt(self, messages: Sequence[Any]) -> list[int]:
        tokens: list[int] = []
        for message in messages:
            own = message["role"] == "assistant"
            said = _said(message, tidy=self.tidy) if own else list(json.dumps(message["content"]).encode())
            tokens += [START, *message["role"].encode(), START, *said, END]
        return [*tokens, START, *b"assistant", START]


def _said(message: Any, *, tidy: bool = False) -> list[int]:
    """An answer as tokens; with ``tidy`` as some templates render it in the history."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return list(json.dumps([message.get("content") or "", functions], indent=1 if tidy else None).encode())


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def gateway(tmp_path: Path, engine: Engine) -> Iterator[Service]:
    with (
        upstream(engine) as fake,
        service(tmp_path, upstream=fake.url, upstream_section={"kind": "vllm"}, storage_section={"tokens": "always"}) as running,
    ):
        yield running


def runs(name: str) -> dict[str, list[captures.Captured]]:
    found: dict[str, list[captures.Captured]] = {}
    for request in captures.read(name):
        if request.method == "POST" and request.path == "/v1/chat/completions":
            found.setdefault(request.run, []).append(request)
    assert found
    return found


def replay(gateway: Service, engine: Engine, run: str, requests: Sequence[captures.Captured]) -> list[Answer]:
    engine.follow(requests)
    answers = [gateway.chat(request.body, x_reef_session=run) for request in requests]
    assert [answer.status for answer in answers] == [200] * len(requests)
    return answers


def report(gateway: Service, run: str, score: float | None, **more: Any) -> str:
    answer = gateway.request("POST", "/reef/report", {"session": run, "score": score, **more})
    assert answer.status in (200, 201), answer.raw
    return answer.json["agent_record_id"]


def batch_of(gateway: Service, *, terms: Terms = TERMS, size: int = 100, **more: Any) -> Batch:
    return read(gateway.store, "default", recipe="sao", terms=terms, size=size, **more)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_real_agents_sessions_become_sequences_in_which_each_answer_trains_once(gateway: Service, engine: Engine, agent: str) -> None:
    captured, answers = runs(agent), {}
    for run, requests in captured.items():
        answers[run] = replay(gateway, engine, run, requests)
        report(gateway, run, 1.0)
    batch = batch_of(gateway)
    assert batch.rollouts == len(captured)
    assert not batch.skipped
    assert sorted(batch.records) == sorted(answer.receipt for each in answers.values() for answer in each)
    assert set(batch.lags) == {0}
    for sample in batch.samples:
        traces = [gateway.store.record(name).tokens for name in sample.records]
        generated = [token for token, own in zip(sample.tokens, sample.mask, strict=True) if own]
        assert generated == [token for trace in traces if trace for token in trace.completion_ids]
        assert traces[-1] is not None
        assert sample.tokens == traces[-1].prompt_ids + traces[-1].completion_ids
    merged = [sample for sample in batch.samples if len(sample.records) > 1]
    if agent in ("pi-1.6.0.jsonl", "qwen-code-0.24.4.jsonl"):
        assert len(batch.samples) == len(captured), "a plain session is one sequence"
    assert merged or agent == "openclaw.jsonl", "OpenClaw moves the user's message behind the tools, so its turns train apart"


def test_a_template_that_renders_a_tool_call_anew_makes_turns_train_apart(gateway: Service, engine: Engine) -> None:
    engine.tidy = True
    run, requests = next(iter(runs("pi-1.6.0.jsonl").items()))
    answers = replay(gateway, engine, run, requests)
    report(gateway, run, 1.0)
    batch = batch_of(gateway)
    assert [sample.records for sample in batch.samples] == [(answer.receipt,) for answer in answers]
    assert not batch.skipped


def test_a_recipe_trains_on_a_record_once_and_on_the_newest_score(gateway: Service, engine: Engine) -> None:
    run, requests = next(iter(runs("pi-1.6.0.jsonl").items()))
    answers = replay(gateway, engine, run, requests)
    first, second, unscored = report(gateway, run, 0.0), report(gateway, run, 1.0), report(gateway, run, None, feedback="fine")
    batch = batch_of(gateway)
    assert [sample.reward for sample in batch.samples] == [1.0]
    assert batch.reports == (first, second)
    assert batch.passed_over == (unscored,)
    consumed = [{"report": name, "recipe": "sao", "scenario": "default", "candidate": "c-1", "at": 0.0} for name in (first, second)]
    with gateway.store._engine.begin() as tx:
        tx.execute(schema.consumptions.insert(), [*consumed, {**consumed[0], "report": unscored, "candidate": None}])
    late = gateway.request("POST", "/reef/report", {"references": [answers[0].receipt], "score": 0.5}).json["agent_record_id"]
    batch = batch_of(gateway)
    assert not batch.samples
    assert batch.skipped == {"consumed": 1}
    assert batch.passed_over == (late,)
    assert read(gateway.store, "default", recipe="grpo", terms=TERMS, size=1).rollouts == 1, "another recipe has not"


def test_records_too_old_for_the_parent_are_counted_and_the_batch_is_topped_up(gateway: Service, engine: Engine) -> None:
    (old, requests), (new, others), *_ = runs("pi-1.6.0.jsonl").items()
    engine.model = "default.1"
    replay(gateway, engine, old, requests)
    engine.model = "default.4"
    replay(gateway, engine, new, others)
    reports = [report(gateway, run, 1.0) for run in (old, new)]
    batch = batch_of(gateway, terms=replace(TERMS, parent=5), size=1)
    assert batch.skipped == {"stale": len(requests)}
    assert batch.lags == {1: len(others)}
    assert {release for sample in batch.samples for release in sample.releases} == {None, 4}
    assert (batch.passed_over, batch.reports) == ((reports[0],), (reports[1],))


def test_attempts_at_one_prompt_are_found_by_its_tokens(gateway: Service, engine: Engine) -> None:
    captured = runs("pi-1.6.0.jsonl")
    (run, requests), (other, others), *_ = captured.items()
    for session, sent in ((run, requests), (other, others), (f"{run}-again", requests)):
        replay(gateway, engine, session, sent)
        report(gateway, session, 1.0)
    alike = _first_prompt(requests) == _first_prompt(others)
    groups = [sample.group for sample in batch_of(gateway, grouped=True).samples]
    assert groups[0] == groups[2] != ""
    assert (groups[0] == groups[1]) == alike


def _first_prompt(requests: Sequence[captures.Captured]) -> str:
    return json.dumps(requests[0].body["messages"])
