"""A real vLLM behind the gateway: the tokens that it sampled are recorded, whole, and the client sees nothing of that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reef.types import End
from tests.support.engine import Running
from tests.support.gateway import Answer, Service, service

ASKED = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12, "temperature": 0}


def gateway_of(engine: Running, folder: Path) -> Any:
    vllm = {"attach": engine.url, "name": "tiny"}
    return service(folder, upstream="", serving={"vllm": vllm}, storage_section={"tokens": "always"})


def events(answer: Answer) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.raw.decode().splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def sampled(engine: Running, prompt: tuple[int, ...]) -> list[int]:
    """What the engine says to these very tokens."""
    body = {"model": "tiny", "prompt": list(prompt), "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    choice = engine.client.ask("POST", "/v1/completions", body, timeout_s=60)["choices"][0]
    ids: list[int] = choice["token_ids"]
    return ids


@pytest.mark.parametrize("stream", [False, True])
def test_ids_and_logprobs_of_what_was_said_are_recorded(tiny_engine: Running, tmp_path: Path, stream: bool) -> None:
    with gateway_of(tiny_engine, tmp_path) as gateway:
        answer = gateway.chat({**ASKED, "stream": stream})
        assert answer.status == 200
        record = gateway.record(answer)
        assert record.end is End.COMPLETE
        assert record.model == "tiny"
        trace = record.tokens
        assert trace is not None
        assert len(trace.completion_ids) == len(trace.logprobs) == 12
        assert all(value <= 0 for value in trace.logprobs)
        assert list(trace.completion_ids) == sampled(tiny_engine, trace.prompt_ids)
        seen = events(answer) if stream else [answer.json]
        assert not any("prompt_token_ids" in event for event in seen)
        assert all(choice.get("logprobs") is None and "token_ids" not in choice for event in seen for choice in event["choices"])


def test_a_client_that_asks_for_logprobs_gets_them_too(tiny_engine: Running, tmp_path: Path) -> None:
    with gateway_of(tiny_engine, tmp_path) as gateway:
        answer = gateway.chat({**ASKED, "logprobs": True, "top_logprobs": 2})
        content = answer.json["choices"][0]["logprobs"]["content"]
        trace = gateway.record(answer).tokens
        assert trace is not None
        assert [token["logprob"] for token in content] == pytest.approx(list(trace.logprobs))
        assert all(len(token["top_logprobs"]) == 2 for token in content)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 4}),
    ],
)
def test_the_other_dialects_are_spoken_too(tiny_engine: Running, tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    with gateway_of(tiny_engine, tmp_path) as gateway:
        answer = gateway.request("POST", path, body)
        assert answer.status == 200, answer.raw
        assert gateway.record(answer).model == "tiny"


def test_a_request_with_tools_is_taken(tiny_engine: Running, tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
    with gateway_of(tiny_engine, tmp_path) as gateway:
        answer = gateway.chat({**ASKED, "tools": [tool], "tool_choice": "auto"})
        assert answer.status == 200, answer.raw


def test_the_status_names_the_engine_and_its_model(tiny_engine: Running, tmp_path: Path) -> None:
    gateway: Service
    with gateway_of(tiny_engine, tmp_path) as gateway:
        upstream = gateway.request("GET", "/reef/status").json["upstreams"][0]
        assert (upstream["name"], upstream["kind"], upstream["model"], upstream["reachable"]) == ("engine", "vllm", "tiny", True)
        assert [model["id"] for model in gateway.request("GET", "/v1/models").json["data"]] == ["tiny"]
