"""Clients that were not written for this gateway work against it unchanged."""

from __future__ import annotations

import openai
import pytest
from reef_client import ReefClient, ReefClientError

from tests.support.gateway import CHAT, Service
from tests.support.upstream import FakeUpstream, Reply, greeting, stream, whole


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
