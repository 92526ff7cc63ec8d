"""Secrets never stored: no header is kept, and what looks like a key in a body is taken out of the stored copy alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
import zstandard

from reef.experience import schema
from reef.experience.database import metadata
from reef.gateway.auth import Auth
from tests.support.gateway import CHAT, Service, service
from tests.support.upstream import FakeUpstream, chunk, message, stream, whole

KEY = "sk-proj-abcdefghijklmnop1234"
ASKED = {
    "model": "m",
    "messages": [{"role": "user", "content": f"deploy with\n{KEY}"}],
    "user": KEY,
    "metadata": {"url": "https://u:pw@h/"},
}


def everything_stored(gateway: Service) -> bytes:
    """Each value of each row, unpacked where it is compressed."""

    def values() -> Iterator[bytes]:
        with gateway.state.engine.connect() as connection:
            for table in metadata.sorted_tables:
                for row in connection.execute(sa.select(table)):
                    for value in row:
                        data = value if isinstance(value, bytes) else json.dumps(value, default=str).encode()
                        yield zstandard.ZstdDecompressor().decompress(data) if data[:4] == zstandard.FRAME_HEADER else data

    return b"\n".join(values())


def test_no_request_header_is_kept(tmp_path: Path, fake: FakeUpstream) -> None:
    names = ("authorization", "x-api-key", "cookie", "user-agent", "x-forwarded-for", "anthropic-beta", "x-title", "x-made-up")
    headers = {name: f"kept-nowhere-{name}" for name in names} | {"authorization": "Bearer mine", "x-api-key": "kept-nowhere"}
    with service(tmp_path, upstream=fake.url, auth=Auth(token="mine")) as gateway:
        for body in (CHAT, {**CHAT, "stream": True}, b"{"):
            gateway.request("POST", "/v1/chat/completions", body, headers)
        fake.replies = [whole({"error": {"message": "no"}}, status=401)]
        receipt = gateway.request("POST", "/v1/chat/completions", CHAT, headers).receipt
        gateway.request("POST", "/reef/report", {"references": [receipt], "score": 0}, headers)
        gateway.request("POST", "/reef/sessions", {"session": "s", "adapter": "pi"}, headers)
        stored = everything_stored(gateway)
        assert b"hello" in stored, "this looks at what is stored"
        assert b"kept-nowhere" not in stored
        assert b"Bearer mine" not in stored
    for file in (tmp_path / ".reef").rglob("*"):
        assert not file.is_file() or b"kept-nowhere" not in file.read_bytes()


def test_a_key_in_a_body_reaches_the_upstream_and_the_caller_but_not_the_store(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [whole(message(f"I used {KEY}.")), stream(chunk({"content": KEY[:9]}), chunk({"content": KEY[9:]}, finish="stop"))]
    raw = json.dumps(ASKED).encode()
    answer = gateway.chat(raw)
    assert fake.seen[-1].raw == raw
    assert answer.json["choices"][0]["message"]["content"] == f"I used {KEY}."
    record = gateway.record(answer)
    assert record.request == json.loads(json.dumps(ASKED).replace(KEY, "[redacted:api-key]").replace("u:pw", "[redacted:password]"))
    assert record.response["choices"][0]["message"]["content"] == "I used [redacted:api-key]."
    streamed = gateway.chat({**ASKED, "stream": True})
    assert gateway.record(streamed).response["choices"][0]["message"]["content"] == "[redacted:api-key]"
    assert KEY.encode() not in everything_stored(gateway)
    assert b"u:pw" not in everything_stored(gateway)


def test_a_key_in_an_upstreams_error_or_a_report_is_not_stored(gateway: Service, fake: FakeUpstream) -> None:
    error = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
    fake.replies = [whole(error, status=401), stream(b"data: " + json.dumps(error).encode() + b"\n\n"), whole()]
    assert gateway.chat().json == error
    gateway.chat({**CHAT, "stream": True, "model": KEY})
    receipt = gateway.chat().receipt
    report = {"references": [receipt], "feedback": {"said": [f"it printed {KEY}"]}, "metadata": {KEY: 1}, "agent_record_id": "r"}
    assert gateway.request("POST", "/reef/report", report).status == 201
    assert gateway.request("POST", "/reef/report", report).status == 200, "the same content, sent again"
    assert gateway.request("POST", "/reef/report", {**report, "feedback": KEY + "5"}).status == 409
    assert gateway.store.report("r").feedback == {"said": ["it printed [redacted:api-key]"]}
    assert KEY.encode() not in everything_stored(gateway)


def test_a_history_with_a_key_is_recognised_when_it_is_sent_again(gateway: Service) -> None:
    first = gateway.record(gateway.chat(ASKED))
    more = [*ASKED["messages"], {"role": "assistant", "content": "hello"}, {"role": "user", "content": "go on"}]
    record = gateway.record(gateway.chat({**ASKED, "messages": more}))
    assert record.request["messages"][0]["content"] == "deploy with\n[redacted:api-key]"
    with gateway.state.engine.connect() as tx:
        base = tx.execute(sa.select(schema.records.c.base).where(schema.records.c.id == record.id)).scalar_one()
    assert base == first.id, "the message with the key is copied from where it stands"


@pytest.mark.parametrize("redact", [True, False])
def test_redaction_can_be_turned_off(tmp_path: Path, fake: FakeUpstream, redact: bool) -> None:
    with service(tmp_path, upstream=fake.url, storage_section={"redact": redact}) as gateway:
        record = gateway.record(gateway.chat(ASKED))
        assert (record.request == ASKED) is not redact
        gateway.request("POST", "/reef/report", {"references": [record.id], "feedback": KEY})
        assert (KEY.encode() in everything_stored(gateway)) is not redact
