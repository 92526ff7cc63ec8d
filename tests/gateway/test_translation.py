"""LiteLLM between callers and upstreams that speak another dialect: real SDKs, real HTTP, truthful ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from reef.serving import litellm_library
from reef.types import End
from tests.support import captures, dialects
from tests.support.gateway import CHAT, Answer, Service, service, until
from tests.support.rehearsal import rehearsing
from tests.support.upstream import FakeUpstream, Reply, Seen, chunk, greeting, stream, upstream, whole

if not litellm_library.installed():  # imported here it would ask the network for its prices
    pytest.skip("the extra litellm is not installed", allow_module_level=True)

SUM = "Write the sum of 19 and 23 to sum.txt"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
WRITE = {"path": "sum.txt", "content": "42\n"}
MESSAGES: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": CHAT["messages"]}
RESPONSES: dict[str, Any] = {"model": "m", "input": "hi"}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
ASKED = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES}
TO_CHAT = pytest.mark.parametrize("dialect", ["messages", "responses"])


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with rehearsing() as url:
        yield url


@pytest.fixture
def chat_only(tmp_path: Path, model: str) -> Iterator[Service]:
    with service(tmp_path, upstream=model, upstream_section={"dialects": ["chat"]}) as gateway:
        yield gateway


@pytest.fixture
def faked(tmp_path: Path) -> Iterator[tuple[Service, FakeUpstream]]:
    """A gateway in front of a scripted server that speaks chat alone."""
    with upstream() as server, service(tmp_path, upstream=server.url) as gateway:
        yield gateway, server


def foreign(name: str) -> list[captures.Captured]:
    """The requests of a capture that are no chat completions."""
    return [item for item in captures.read(name) if item.method == "POST" and not item.path.endswith("/chat/completions")]


def post(gateway: Service, dialect: str, **more: Any) -> Answer:
    return gateway.request("POST", PATHS[dialect], {**ASKED[dialect], **more})


def test_the_anthropic_sdk_calls_a_tool_of_a_model_that_speaks_chat(chat_only: Service) -> None:
    client = anthropic.Anthropic(base_url=f"{chat_only.url}/s/work/run", api_key="any", max_retries=0)
    asked: Any = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": SUM}], "system": "Be brief."}
    asked["tools"] = [{"name": "write", "input_schema": SCHEMA}]
    message = client.messages.create(**asked)
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert (call.name, call.input, message.stop_reason) == ("write", WRITE, "tool_use")
    with client.messages.stream(**asked) as streamed:
        kinds = [event.type for event in streamed]
        last = streamed.get_final_message()
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert [block.input for block in last.content if block.type == "tool_use"] == [WRITE]
    assert last.stop_reason == "tool_use"
    assert last.usage.output_tokens > 0
    history = [*asked["messages"], {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in last.content]}]
    (called,) = [block for block in last.content if block.type == "tool_use"]
    history.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": called.id, "content": "ok"}]})
    with client.messages.stream(**{**asked, "messages": history}) as streamed:
        assert "Wrote sum.txt" in "".join(streamed.text_stream)
    records = chat_only.store.session_records("work", "run")
    assert [(record.dialect, record.end, record.streamed) for record in records] == [
        ("messages", End.COMPLETE, streamed) for streamed in (False, True, True)
    ]
    assert records[2].request["messages"] == history
    assert records[1].response["content"] == [block.model_dump(exclude_none=True) for block in last.content]


def test_the_openai_sdk_calls_a_tool_by_responses_of_a_model_that_speaks_chat(chat_only: Service) -> None:
    client = openai.OpenAI(base_url=f"{chat_only.url}/v1", api_key="any", max_retries=0, default_headers={"x-reef-session": "run"})
    tools: Any = [{"type": "function", "name": "write", "parameters": SCHEMA, "strict": False}]
    first = client.responses.create(model="m", input=SUM, tools=tools)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments), first.status) == ("write", WRITE, "completed")
    with client.responses.stream(model="m", input=SUM, tools=tools) as streamed:
        events = list(streamed)
        last = streamed.get_final_response()
    assert [event.sequence_number for event in events if hasattr(event, "sequence_number")][:3] == [0, 1, 2]
    (call,) = [item for item in last.output if item.type == "function_call"]
    assert json.loads(call.arguments) == WRITE
    history: Any = [{"role": "user", "content": SUM}, *(item.model_dump(exclude_none=True) for item in last.output)]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "ok"})
    assert "Wrote sum.txt" in client.responses.create(model="m", input=history, tools=tools, instructions="Be brief.").output_text
    records = chat_only.store.session_records("default", "run")
    assert [(record.dialect, record.end) for record in records] == [("responses", End.COMPLETE)] * 3
    assert records[2].request["input"] == history
    assert records[1].usage["completion_tokens"] > 0


def test_the_openai_sdk_chats_with_a_model_that_speaks_messages_or_responses(tmp_path: Path, model: str) -> None:
    tools: Any = [{"type": "function", "function": {"name": "write", "parameters": SCHEMA}}]
    for number, spoken in enumerate((["messages"], ["responses"])):
        with service(tmp_path / str(number), upstream=model, upstream_section={"dialects": spoken}) as gateway:
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0)
            asked: Any = {"model": "m", "messages": [{"role": "user", "content": SUM}], "tools": tools}
            answer = client.chat.completions.create(**asked).choices[0]
            assert json.loads(answer.message.tool_calls[0].function.arguments) == WRITE  # type: ignore[index]
            assert answer.finish_reason == "tool_calls"
            with client.chat.completions.stream(**asked) as streamed:
                choice = streamed.get_final_completion().choices[0]
            assert json.loads(choice.message.tool_calls[0].function.arguments) == WRITE  # type: ignore[index]
            ends = [record.end for record in gateway.store.records("default")]
            assert ends == [End.COMPLETE] * 2


@TO_CHAT
@pytest.mark.parametrize(("pieces", "end"), [(2, "clean"), (2, "reset"), (2, "close"), (4, "clean")])
def test_a_broken_stream_never_ends_cleanly(faked: tuple[Service, FakeUpstream], dialect: str, pieces: int, end: Any) -> None:
    gateway, server = faked
    server.replies = [stream(*greeting()[:pieces], end=end)]
    answer = post(gateway, dialect, stream=True)
    record = gateway.record(answer)
    if pieces == 4:  # the upstream said why it ended; that it forgot [DONE] changes nothing
        assert record.end is End.COMPLETE
        return
    assert record.end in (End.TRUNCATED, End.UPSTREAM_ERROR)
    assert b"message_stop" not in answer.raw and b"response.completed" not in answer.raw
    assert b"event: error" in answer.raw


STREAMS = {"chat": greeting(), "messages": dialects.message_events(), "responses": dialects.response_events()}
CLEAN = {"chat": b"[DONE]", "messages": b"message_stop", "responses": b"response.completed"}


@pytest.mark.parametrize(("caller", "spoken"), [(a, b) for a in STREAMS for b in STREAMS if a != b])
def test_every_pair_of_dialects_is_translated_with_truthful_ends(tmp_path: Path, caller: str, spoken: str) -> None:
    with upstream(lambda seen: server.replies.pop(0) if server.replies else dialects.answer(seen)) as server:
        with service(tmp_path, upstream=server.url, upstream_section={"dialects": [spoken]}) as gateway:
            for streamed in (False, True):
                answer = post(gateway, caller, stream=streamed)
                assert gateway.record(answer).end is End.COMPLETE
                assert b"hello" in json.dumps(gateway.record(answer).response).encode()
                assert not streamed or CLEAN[caller] in answer.raw
            server.replies = [stream(*STREAMS[spoken][: len(STREAMS[spoken]) // 2])]
            broken = post(gateway, caller, stream=True)
            assert gateway.record(broken).end in (End.TRUNCATED, End.UPSTREAM_ERROR)
            assert CLEAN[caller] not in broken.raw
        assert {seen.path for seen in server.seen} == {PATHS[spoken]}


def test_claude_behind_litellm_streams_messages_truthfully(tmp_path: Path) -> None:
    with upstream(lambda seen: server.replies.pop(0) if server.replies else dialects.answer(seen)) as server:
        section = {"kind": "litellm", "url": server.url.removesuffix("/v1"), "model": "anthropic/m"}
        with service(tmp_path, upstream="", upstreams={"claude": section}) as gateway:
            client = anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0)
            with client.messages.stream(model="reef", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as streamed:
                last = streamed.get_final_message()
            assert [block.type for block in last.content] == ["thinking", "text", "tool_use"]
            assert last.content[-1].input == dialects.INPUT  # type: ignore[union-attr]
            server.replies = [stream(*dialects.message_events()[:10])]
            broken = post(gateway, "messages", stream=True)
            assert gateway.record(broken).end in (End.TRUNCATED, End.UPSTREAM_ERROR)
            assert b"message_stop" not in broken.raw


@TO_CHAT
def test_an_error_inside_the_upstreams_stream_is_an_error(faked: tuple[Service, FakeUpstream], dialect: str) -> None:
    gateway, server = faked
    server.replies = [stream(chunk({"content": "hel"}), b'data: {"error": {"message": "out of memory", "code": 500}}\n\n')]
    answer = post(gateway, dialect, stream=True)
    assert gateway.record(answer).end in (End.TRUNCATED, End.UPSTREAM_ERROR)
    assert b"message_stop" not in answer.raw and b"response.completed" not in answer.raw


@TO_CHAT
def test_refusals_and_silence_arrive_in_the_callers_dialect(tmp_path: Path, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-never-to-be-seen")
    with upstream() as server:
        section = {"timeout_s": 2, "key_env": "TEST_KEY"}  # long enough for LiteLLM on a busy machine
        with service(tmp_path, upstream=server.url, upstream_section=section) as gateway:
            post(gateway, dialect)  # brings LiteLLM in, which is not to be timed
            server.replies = [
                whole({"error": {"message": "slow down, sk-never-to-be-seen"}}, status=429, headers={"retry-after": "7"}),
                whole({"error": {"message": "what?"}}, status=400),
                whole({"error": {"message": "broken"}}, status=500),
                Reply(silent=True, end="hang"),
                stream(*greeting()[:2], end="hang"),
            ]
            answers = [post(gateway, dialect) for _ in range(4)]
            streamed = post(gateway, dialect, stream=True)
            assert [answer.status for answer in answers] == [429, 400, 502, 504]
            assert answers[0].headers["retry-after"] == "7"
            assert [answer.json.get("type") for answer in answers] == ["error" if dialect == "messages" else None] * 4
            assert "slow down" in answers[0].json["error"]["message"]
            assert gateway.record(answers[3]).end is End.TIMEOUT
            assert gateway.record(streamed).end is End.TIMEOUT
            assert all(b"never-to-be-seen" not in answer.raw for answer in answers)
        assert {seen.headers["authorization"] for seen in server.seen} == {"Bearer sk-never-to-be-seen"}


@TO_CHAT
@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_leaves_ends_the_translated_request(faked: tuple[Service, FakeUpstream], dialect: str, begun: bool) -> None:
    gateway, server = faked
    server.replies = [stream(*greeting()[:2], end="hang") if begun else Reply(silent=True, end="hang")]
    connection = gateway.connect()
    connection.request("POST", PATHS[dialect], json.dumps({**ASKED[dialect], "stream": True}), {"x-reef-session": "left"})
    if begun:
        assert connection.getresponse().read(20)
    until(lambda: server.seen, within_s=30)
    connection.close()
    assert until(server.seen[0].hung_up.is_set)
    (record,) = until(lambda: gateway.store.session_records("default", "left"))
    assert record.end is End.CLIENT_GONE


@pytest.mark.parametrize("name", [name for name in captures.files() if foreign(name)])
@pytest.mark.parametrize("streamed", [False, True])
def test_what_real_agents_sent_is_translated_for_an_upstream_that_speaks_chat(
    faked: tuple[Service, FakeUpstream], name: str, streamed: bool
) -> None:
    gateway, server = faked
    for item in foreign(name)[:4]:
        answer = gateway.request("POST", item.path, {**item.body, "stream": streamed})
        assert answer.status == 200, answer.raw
        record = gateway.record(answer)
        assert (record.end, record.streamed) == (End.COMPLETE, streamed)
        assert record.request == {**item.body, "stream": streamed}
        sent = server.seen[-1]
        assert sent.path == "/v1/chat/completions"
        assert len(sent.body["messages"]) > 1
        asked_tools = [tool for tool in item.body.get("tools", ()) if tool.get("type", "function") in ("function", "custom")]
        assert {tool["name"] for tool in asked_tools} <= {tool["function"]["name"] for tool in sent.body.get("tools", ())}


HOSTILE: dict[str, Any] = {
    "api_base": "http://127.0.0.1:9/v1",
    "base_url": "http://127.0.0.1:9/v1",
    "api_key": "theirs",
    "custom_llm_provider": "openai",
    "extra_headers": {"authorization": "Bearer theirs"},
    "headers": {"authorization": "Bearer theirs"},
    "extra_body": {"smuggled": True},
    "mock_response": "canned",
    "fallbacks": [{"model": "openai/x", "api_base": "http://127.0.0.1:9"}],
    "model_list": [],
    "metadata": {"api_base": "http://127.0.0.1:9"},
    "litellm_metadata": {"api_base": "http://127.0.0.1:9"},
    "client": None,
    "callbacks": ["langfuse"],
    "success_callback": ["langfuse"],
    "num_retries": 5,
    "timeout": 0.001,
    "use_chat_completions_api": False,
    "tools": [],
}


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
@pytest.mark.parametrize("named", ["m", "openai/gpt-5", "anthropic/claude", "azure/x", "bedrock/x", "ollama/x"])
def test_nothing_a_client_sends_leads_a_request_elsewhere(
    tmp_path: Path, dialect: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", "the-right-key")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HOSTED_VLLM_API_KEY"):
        monkeypatch.setenv(name, "of-another-place")
    with upstream(dialects.answer) as server:
        section = {"kind": "litellm", "url": server.url, "model": "hosted_vllm/m", "dialects": ["chat"], "key_env": "TEST_KEY"}
        keyless = {name: value for name, value in section.items() if name != "key_env"}
        with service(tmp_path, upstream="", upstreams={"a": section, "b": keyless}) as gateway:
            hostile = {"api-base": "http://127.0.0.1:9", "x-litellm-api-base": "http://127.0.0.1:9", "authorization": "Bearer theirs"}
            for model in (named, f"b/{named}"):
                body = {**ASKED[dialect], **HOSTILE, "model": model}
                answer = gateway.request("POST", PATHS[dialect], body, hostile)
                assert answer.status == 200, answer.raw
                assert b"canned" not in answer.raw
    assert [seen.headers["authorization"] for seen in server.seen] == ["Bearer the-right-key", "Bearer none"]
    for seen in server.seen:
        assert seen.path == "/v1/chat/completions"
        assert not set(seen.body) & (set(HOSTILE) - {"tools"} | {"smuggled"})


@pytest.mark.parametrize("named", ["http://127.0.0.1:9/v1", "../x", "a//b", "", " m", 7, "m?x=1"])
def test_a_model_that_could_be_a_place_is_refused(faked: tuple[Service, FakeUpstream], named: Any) -> None:
    answer = post(faked[0], "messages", model=named)
    assert answer.status == 400
    assert faked[1].seen == []


def test_what_cannot_be_translated_is_refused_by_name(faked: tuple[Service, FakeUpstream]) -> None:
    gateway, server = faked
    assert "previous_response_id" in post(gateway, "responses", previous_response_id="resp_1").json["error"]["message"]
    no_bound = gateway.request("POST", PATHS["messages"], {"model": "m", "messages": []})
    assert (no_bound.status, no_bound.json["error"]["message"]) == (400, "max_tokens is missing")
    assert server.seen == []


def test_tokens_are_counted_about(faked: tuple[Service, FakeUpstream]) -> None:
    gateway, server = faked
    short, long = (
        gateway.request("POST", "/v1/messages/count_tokens", {"model": "m", "messages": [{"role": "user", "content": "word " * times}]})
        for times in (10, 1000)
    )
    assert 10 <= short.json["input_tokens"] < 60
    assert 1000 <= long.json["input_tokens"] < 1100
    assert server.seen == []


def test_the_litellm_kind_answers_every_dialect_and_falls_back(tmp_path: Path) -> None:
    with upstream(dialects.answer) as server, upstream(lambda _seen: whole({}, status=503)) as down:
        section = {"kind": "litellm", "model": "hosted_vllm/big", "dialects": ["chat"]}
        sections = {"a": {**section, "url": down.url}, "b": {**section, "url": server.url}}
        with service(tmp_path, upstream="", upstreams=sections, models={"smart": ["a", "b/hosted_vllm/small"]}) as gateway:
            for dialect in PATHS:
                record = gateway.record(post(gateway, dialect, model="smart"))
                assert (record.end, record.upstream, record.dialect) == (End.COMPLETE, server.url, dialect)
            assert [seen.body["model"] for seen in server.seen] == ["small"] * 3
            listed = [model["id"] for model in gateway.request("GET", "/v1/models").json["data"]]
            assert listed == ["smart", "big", "b/big"]


def test_a_provider_of_its_own_shape_is_asked_as_it_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "google-key")

    def gemini(seen: Seen) -> Reply:
        said = {"candidates": [{"content": {"role": "model", "parts": [{"text": "hello"}]}, "finishReason": "STOP", "index": 0}]}
        return whole({**said, "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}})

    with upstream(gemini) as server:
        url = server.url.removesuffix("/v1")
        section = {"kind": "litellm", "url": url, "model": "gemini/gemini-2.5-flash", "key_env": "TEST_KEY"}
        with service(tmp_path, upstream="", upstreams={"g": section}) as gateway:
            client = anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0)
            asked: Any = {"model": "reef", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
            assert client.messages.create(**asked).content[0].text == "hello"  # type: ignore[union-attr]
    assert [seen.headers.get("x-goog-api-key") for seen in server.seen] == ["google-key"]


def test_the_environment_is_left_alone_and_no_dotenv_is_read(faked: tuple[Service, FakeUpstream], monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: value for name, value in os.environ.items() if not name.startswith("LITELLM_")}
    assert post(faked[0], "messages").status == 200
    assert {name: value for name, value in os.environ.items() if not name.startswith("LITELLM_")} == before
