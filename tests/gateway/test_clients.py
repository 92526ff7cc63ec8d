"""Clients that were not written for this gateway work against it unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest
from reef_client import ReefClient, ReefClientError

from tests.support import dialects
from tests.support.gateway import CHAT, Service, service
from tests.support.upstream import FakeUpstream, Reply, greeting, stream, upstream, whole


def sdk(gateway: Service, **options: object) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, **options)  # type: ignore[arg-type]


def test_the_openai_sdk_chats_and_streams(gateway: Service) -> None:
    client = sdk(gateway, default_headers={"x-reef-session": "run"})
    assert client.chat.completions.create(**CHAT).choices[0].message.content == "hello"
    parts = [event.choices[0].delta.content or "" for event in client.chat.completions.create(**CHAT, stream=True) if event.choices]
    assert "".join(parts) == "hello"
    assert len(gateway.store.session_records("default", "run")) == 2
    assert [model.id for model in client.models.list()] == ["fake-1"]


def test_the_openai_sdk_sees_a_broken_stream_as_an_error(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [stream(*greeting()[:2], end="reset")]
    with pytest.raises(openai.APIError, match="broke off"):
        list(sdk(gateway).chat.completions.create(**CHAT, stream=True))


def test_the_openai_sdk_sees_our_errors_and_the_providers(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [whole({"error": {"message": "slow down"}}, status=429), Reply(silent=True, end="close")]
    with pytest.raises(openai.RateLimitError, match="slow down"):
        sdk(gateway).chat.completions.create(**CHAT)
    with pytest.raises(openai.InternalServerError, match="cannot be reached"):
        sdk(gateway).chat.completions.create(**CHAT)


def test_the_public_client_asks_reports_and_reads(gateway: Service) -> None:
    client = ReefClient(gateway.url, token="any")
    body, receipt = client.inference_with_record("work", "/v1/chat/completions", CHAT)
    assert body["choices"][0]["message"]["content"] == "hello"
    stored = client.report("work", {"score": 0.0, "feedback": "no"}, references=[receipt])
    assert gateway.store.report(stored["agent_record_id"]).references == (receipt,)
    assert client.get(f"/reef/records/{receipt}")["request"] == CHAT
    with pytest.raises(ReefClientError) as refused:
        client.report("work", {"score": 0.0}, references=["rec_none"])
    assert refused.value.status == 404


@pytest.fixture
def many(tmp_path: Path) -> Iterator[tuple[Service, FakeUpstream]]:
    """A gateway in front of an upstream that speaks every dialect."""
    with upstream(lambda seen: server.replies.pop(0) if server.replies else dialects.answer(seen)) as server:
        section = {"dialects": ["chat", "responses", "messages"]}
        with service(tmp_path, upstream=server.url, upstream_section=section) as running:
            yield running, server


def test_the_openai_sdk_speaks_responses(many: tuple[Service, FakeUpstream]) -> None:
    gateway, fake = many
    client = sdk(gateway, default_headers={"x-reef-session": "run"})
    answer = client.responses.create(model="m", input="hi")
    assert answer.output_text == "hello"
    assert answer.output[-1].type == "function_call"
    events = list(client.responses.create(model="m", input=[{"role": "user", "content": "hi"}], stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "hello"
    assert events[-1].type == "response.completed"
    with client.responses.stream(model="m", input="hi") as streamed:
        assert streamed.get_final_response().output_text == "hello"
    records = gateway.store.session_records("default", "run")
    assert [record.request["input"] for record in records] == ["hi", [{"role": "user", "content": "hi"}], "hi"]
    fake.replies = [stream(*dialects.response_events()[:5], end="close")]
    with pytest.raises(openai.APIError, match="broke off"):
        list(client.responses.create(model="m", input="hi", stream=True))


def test_the_anthropic_sdk_asks_streams_and_counts(many: tuple[Service, FakeUpstream]) -> None:
    gateway, fake = many
    client = anthropic.Anthropic(base_url=f"{gateway.url}/s/work/run", api_key="any", max_retries=0)
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    message = client.messages.create(**asked)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[-1].input == dialects.INPUT
    events = list(client.messages.create(**asked, stream=True))
    assert events[-1].type == "message_stop"
    with client.messages.stream(**asked) as streamed:
        assert "".join(streamed.text_stream) == "hello"
        assert streamed.get_final_message().stop_reason == "tool_use"
    assert client.messages.count_tokens(model="m", messages=asked["messages"]).input_tokens == 7
    assert len(gateway.store.session_records("work", "run")) == 3
    fake.replies = [stream(*dialects.message_events()[:9], end="close")]
    with pytest.raises(anthropic.APIStatusError, match="broke off"):
        list(client.messages.create(**asked, stream=True))


def test_the_anthropic_sdk_sees_our_errors_and_the_providers(many: tuple[Service, FakeUpstream]) -> None:
    gateway, fake = many
    client = anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0)
    slow = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    fake.replies = [whole(slow, status=429), Reply(silent=True, end="close")]
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(anthropic.RateLimitError, match="slow down"):
        client.messages.create(**asked)
    with pytest.raises(anthropic.InternalServerError, match="cannot be reached"):
        client.messages.create(**asked)
