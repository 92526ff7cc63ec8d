"""A silent upstream: its client hears a comment now and then, between events alone, and is told the truth all the same."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from reef.gateway.dialects import CHAT as CHAT_DIALECT
from reef.gateway.exchange import Exchange
from reef.gateway.keepalive import COMMENT, Delivery
from reef.types import End, Record
from tests.support import dialects
from tests.support.gateway import CHAT, Service, service, until
from tests.support.upstream import FakeUpstream, Reply, greeting, stream, upstream, whole

SECTIONS: dict[str, Any] = {"upstream_section": {"dialects": ["chat", "responses", "messages"]}, "listen": {"keep_alive_s": 0.1}}
BODIES = {
    "/v1/chat/completions": {**CHAT, "stream": True},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": [], "stream": True},
    "/v1/responses": {"model": "m", "input": "hi", "stream": True},
}
EVENTS = {"/v1/chat/completions": greeting, "/v1/messages": dialects.message_events, "/v1/responses": dialects.response_events}
every = pytest.mark.parametrize("path", list(BODIES))


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream(lambda seen: server.replies.pop(0) if server.replies else dialects.answer(seen)) as server:
        yield server


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    with service(tmp_path, upstream=fake.url, **SECTIONS) as running:
        yield running


class Stream:
    """An answer that is read as it comes."""

    def __init__(self, gateway: Service, path: str) -> None:
        self._gateway = gateway
        self._connection = gateway.connect()
        self._connection.request("POST", path, json.dumps(BODIES[path]), {"content-type": "application/json"})
        self.response = self._connection.getresponse()
        self.raw = b""

    def read_until(self, end: bytes) -> None:
        """Read until ``end`` came, after what came before."""
        start = len(self.raw)
        while not self.raw[start:].endswith(end):
            piece = self.response.read(1)
            assert piece, self.raw
            self.raw += piece

    def rest(self) -> Record:
        """Read to the end; the record."""
        self.raw += self.response.read()
        self._connection.close()
        return self._gateway.store.record(self.response.headers["x-reef-agent-record-id"])


@every
def test_silence_between_events_is_filled_with_comments(gateway: Service, fake: FakeUpstream, path: str) -> None:
    go = threading.Event()
    events = EVENTS[path]()
    fake.replies = [stream(*events[:2], events[2][:9], go, events[2][9:], *events[3:])]
    answer = Stream(gateway, path)
    for _ in range(3):
        answer.read_until(COMMENT)
    assert answer.raw.replace(COMMENT, b"") == b"".join(events[:2])  # what is cut off waits, and is not broken into
    go.set()
    record = answer.rest()
    assert answer.raw.replace(COMMENT, b"") == b"".join(events)
    assert record.end is End.COMPLETE


@pytest.mark.alone
@every
def test_a_head_that_does_not_come_is_sent_by_the_gateway(gateway: Service, fake: FakeUpstream, path: str) -> None:
    go = threading.Event()
    fake.replies = [Reply(pieces=EVENTS[path](), content_type="text/event-stream", before=go)]
    answer = Stream(gateway, path)
    headers = answer.response.headers
    assert (answer.response.status, headers["content-type"], headers["x-accel-buffering"]) == (200, "text/event-stream", "no")
    assert 0 < float(headers["x-reef-overhead-ms"]) < 100
    answer.read_until(COMMENT)
    answer.read_until(COMMENT)
    go.set()
    record = answer.rest()
    assert answer.raw.replace(COMMENT, b"") == b"".join(EVENTS[path]())
    assert (record.end, record.status, record.streamed) == (End.COMPLETE, 200, True)


ERROR = {"error": {"type": "overloaded", "message": "too much"}}


@every
@pytest.mark.parametrize(
    ("late", "end", "said"),
    [
        (whole(ERROR, status=529), End.UPSTREAM_ERROR, "the upstream answered 529"),
        (whole({"a": 1}), End.UPSTREAM_ERROR, "as a whole where a stream was asked for"),
        (Reply(pieces=[b"<html>"], content_type="text/html", status=502), End.UPSTREAM_ERROR, "the upstream answered 502: <html>"),
        (Reply(silent=True, end="close"), End.UPSTREAM_ERROR, "cannot be reached"),
    ],
)
def test_what_goes_wrong_after_that_is_an_error_event_and_recorded_as_what_it_was(
    gateway: Service, fake: FakeUpstream, path: str, late: Reply, end: End, said: str
) -> None:
    go = threading.Event()
    fake.replies = [Reply(**{**vars(late), "before": go})]
    answer = Stream(gateway, path)
    answer.read_until(COMMENT)
    go.set()
    record = answer.rest()
    event = answer.raw.replace(COMMENT, b"").strip()
    assert b"\n\n" not in event
    assert (path == "/v1/chat/completions") == event.startswith(b"data:")
    error = json.loads(event.partition(b"data: ")[2])["error"]
    assert said in error["message"]
    assert error["hint"]
    assert (record.end, record.status, record.streamed) == (end, 200, True)
    assert said.partition(":")[0] in record.error
    if late.pieces and late.content_type == "application/json":
        assert record.response == json.loads(late.pieces[0])


def test_a_silence_beyond_the_upstreams_bound_is_still_a_timeout(tmp_path: Path, fake: FakeUpstream) -> None:
    with service(tmp_path, upstream=fake.url, upstream_section={"timeout_s": 0.5}, listen={"keep_alive_s": 0.1}) as gateway:
        fake.replies = [Reply(silent=True, end="hang")]
        answer = Stream(gateway, "/v1/chat/completions")
        record = answer.rest()
        assert answer.raw.startswith(COMMENT)
        assert b"upstream_timeout_error" in answer.raw
        assert (record.end, record.status) == (End.TIMEOUT, 200)


def test_a_client_that_leaves_a_silent_stream_is_noticed_at_once(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [Reply(silent=True, end="hang")]
    answer = Stream(gateway, "/v1/chat/completions")
    answer.read_until(COMMENT)
    answer.response.close()
    answer._connection.close()
    assert fake.seen[0].hung_up.wait(5)
    record = until(lambda: gateway.store.records("default"))[0]
    assert (record.end, record.status) == (End.CLIENT_GONE, 200)


def test_who_asked_for_no_stream_hears_nothing_before_the_answer(gateway: Service, fake: FakeUpstream) -> None:
    go = threading.Event()
    fake.replies = [Reply(pieces=whole(ERROR).pieces, status=503, before=go)]
    threading.Timer(0.4, go.set).start()
    assert gateway.chat().status == 503


def test_keep_alive_can_be_turned_off(tmp_path: Path, fake: FakeUpstream) -> None:
    with service(tmp_path, upstream=fake.url, listen={"keep_alive_s": 0}) as gateway:
        go = threading.Event()
        fake.replies = [Reply(pieces=whole(ERROR).pieces, status=503, before=go)]
        threading.Timer(0.4, go.set).start()
        assert gateway.chat({**CHAT, "stream": True}).status == 503


def test_a_chat_event_that_left_in_part_is_not_broken_into() -> None:
    tap = CHAT_DIALECT.tap()
    assert tap.between_events
    for piece, between in (
        (b"data: 1\n", False),
        (b"\n", True),
        (b"id: 1\r\n", False),
        (b"data: 1\r\n\r\n", True),
        (b"data", True),
        (b": 2\n", False),
    ):
        tap.feed(piece)
        assert tap.between_events is between


@pytest.mark.parametrize("before_head", [True, False])
def test_the_official_sdks_take_no_notice_of_comments(gateway: Service, fake: FakeUpstream, before_head: bool) -> None:
    def silent(path: str) -> None:
        go = threading.Event()
        events = EVENTS[path]()
        fake.replies = [Reply(pieces=[events[0], go, *events[1:]], content_type="text/event-stream")]
        if before_head:
            fake.replies = [Reply(pieces=events, content_type="text/event-stream", before=go)]
        threading.Timer(0.4, go.set).start()

    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0)
    silent("/v1/chat/completions")
    parts = [event.choices[0].delta.content or "" for event in client.chat.completions.create(**CHAT, stream=True) if event.choices]
    assert "".join(parts) == "hello"
    silent("/v1/responses")
    assert list(client.responses.create(model="m", input="hi", stream=True))[-1].response.status == "completed"
    silent("/v1/messages")
    with anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0).messages.stream(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
    ) as said:
        assert said.get_final_message().stop_reason == "tool_use"


def test_an_exchange_is_gone_with_its_answer_and_waits_for_no_collector(gateway: Service) -> None:
    gateway.chat({**CHAT, "stream": True})
    gc.collect()
    gc.disable()
    try:
        for path, body in BODIES.items():
            gateway.request("POST", path, body)
        left = [found for found in gc.get_objects() if isinstance(found, Exchange | Delivery)]
        assert len(left) <= 1  # the last one, of which the server may hold the end
    finally:
        gc.enable()
