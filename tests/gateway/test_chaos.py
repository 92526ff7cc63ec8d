"""An upstream that misbehaves in every way we know of, in every dialect: the record is true, and only a clean end looks like one."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reef.gateway.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from reef.types import End, Record
from tests.support import dialects
from tests.support.chaos import END, HEAD, ChaosUpstream, Wire, chaos
from tests.support.gateway import Service, service, until
from tests.support.upstream import DONE, chunk, greeting

MANY_BYTES = 5 * 1024 * 1024
OURS_BYTES = 1024 * 1024
"""What the gateway itself may hold of a stream whose client does not read."""
EMPTY = {"type": "text", "text": ""}
LETTER = "\u00e9\U0001f600"
"""Two characters of six bytes."""


@dataclass(frozen=True)
class Case:
    """One dialect, and how it is spoken."""

    dialect: Dialect
    body: dict[str, Any]
    events: tuple[bytes, ...]
    closing: int
    """Events at the end without which the answer is whole all the same, plus one."""

    @property
    def path(self) -> str:
        return self.dialect.path

    def said(self, texts: list[str]) -> list[bytes]:
        """A whole stream with these pieces of text."""
        if self.dialect is CHAT:
            pieces = [chunk({"content": text}) for text in texts]
            return [chunk({"role": "assistant", "content": ""}), *pieces, chunk({}, finish="stop"), DONE]
        if self.dialect is MESSAGES:
            pieces = [dialects.named("content_block_delta", index=0, delta={"type": "text_delta", "text": text}) for text in texts]
            first = [
                dialects.message_events()[0],
                dialects.named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            ]
            return [*first, *pieces, dialects.named("content_block_stop", index=0), *dialects.message_events()[-2:]]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "".join(texts)}]}
        begun = {**dialects.response("in_progress"), "output": []}
        pieces = [dialects.named("response.output_text.delta", output_index=0, content_index=0, delta=text) for text in texts]
        return [
            dialects.named("response.created", response=begun),
            dialects.named("response.output_item.added", output_index=0, item={**item, "content": []}),
            *pieces,
            dialects.named("response.output_item.done", output_index=0, item=item),
            dialects.named("response.completed", response={**begun, "status": "completed", "output": [item]}),
        ]

    def text(self, response: Any) -> str:
        """The text of an answer."""
        if self.dialect is CHAT:
            return response["choices"][0]["message"]["content"]
        return (response["content"] if self.dialect is MESSAGES else response["output"][0]["content"])[0]["text"]


CASES = {
    "chat": Case(CHAT, {"model": "m", "messages": [], "stream": True}, tuple(greeting()), 3),
    "messages": Case(MESSAGES, {"model": "m", "max_tokens": 9, "messages": [], "stream": True}, tuple(dialects.message_events()), 1),
    "responses": Case(RESPONSES, {"model": "m", "input": [], "stream": True}, tuple(dialects.response_events()), 1),
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture(scope="module")
def upstream() -> Iterator[ChaosUpstream]:
    with chaos() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, upstream: ChaosUpstream) -> Iterator[Service]:
    section = {"dialects": list(CASES), "timeout_s": 5}
    with service(tmp_path_factory.mktemp("chaos"), upstream=upstream.url, upstream_section=section) as running:
        yield running


@dataclass
class Heard:
    """What a client got, and the record of it."""

    raw: bytes
    record: Record

    def events(self) -> list[bytes]:
        return [event for event in self.raw.replace(b"\r\n", b"\n").strip().split(b"\n\n") if event.strip()]


def ask(gateway: Service, case: Case) -> Heard:
    answer = gateway.request("POST", case.path, case.body)
    return Heard(answer.raw, gateway.record(answer))


def reassembled(case: Case, raw: bytes) -> tuple[Any, bool]:
    """What a client makes of a stream, and whether it is whole to it."""
    tap = case.dialect.tap()
    tap.feed(raw)
    tap.finish()
    return tap.assembly.completion(), tap.assembly.finished()


def assert_broken(case: Case, heard: Heard, end: End) -> None:
    """The client was told, once and last; the record says what came."""
    if heard.record.status != 200:  # nothing of the answer was there when it broke: the status says it
        assert (heard.record.status, heard.record.end, heard.record.response) == (502, End.UPSTREAM_ERROR, None)
        assert json.loads(heard.raw)["error"]["type"] == "upstream_error"
        return
    *before, last = heard.events()
    data = json.loads(last.partition(b"data: ")[2])
    assert data["error"]["message"]
    assert data["error"]["hint"]
    assert all(b"error" not in event.split(b"\n")[0] for event in before)
    came, finished = reassembled(case, b"".join(event.strip() + b"\n\n" for event in before))
    assert not finished
    assert heard.record.end is end
    assert heard.record.error
    assert json.dumps(heard.record.response) == json.dumps(came)


def assert_whole(heard: Heard, case: Case, sent: bytes) -> None:
    assert heard.raw == sent
    assert heard.record.end is End.COMPLETE
    assert json.dumps(heard.record.response) == json.dumps(reassembled(case, sent)[0])


@every
def test_a_stream_may_be_split_between_any_two_bytes_of_a_character(gateway: Service, upstream: ChaosUpstream, case: Case) -> None:
    sent = b"".join(case.said([LETTER, LETTER])).replace(json.dumps(LETTER)[1:-1].encode(), LETTER.encode())
    assert LETTER.encode() in sent

    async def byte_by_byte(wire: Wire) -> None:
        await wire.stream(*(sent[place : place + 1] for place in range(len(sent))))
        await wire.say(END)

    upstream.script = byte_by_byte
    heard = ask(gateway, case)
    assert_whole(heard, case, sent)
    assert case.text(heard.record.response) == 2 * LETTER


@every
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_every_place_to_split_a_stream_in_two_gives_the_same(case: Case, end: bytes) -> None:
    sent = b"".join(case.said([LETTER, "a"])).replace(b"\n", end)
    want = reassembled(case, sent)
    for cut in range(len(sent) + 1):
        tap = case.dialect.tap()
        left = tap.feed(sent[:cut])
        assert sent.startswith(left)
        left += tap.feed(sent[cut:])
        tap.finish()
        assert left + tap.held == sent
        assert (tap.assembly.completion(), tap.assembly.finished()) == want


@every
def test_a_reset_after_any_number_of_events_is_never_a_clean_end(gateway: Service, upstream: ChaosUpstream, case: Case) -> None:
    for kept in range(len(case.events)):

        async def reset(wire: Wire, kept: int = kept) -> None:
            await wire.stream(*case.events[:kept])
            await wire.say(b"10\r\nevent: x\ndat")  # in mid-event and in mid-chunk
            wire.reset()

        upstream.script = reset
        heard = ask(gateway, case)
        if heard.record.end is End.COMPLETE:
            assert kept > len(case.events) - case.closing
            assert reassembled(case, heard.raw)[1]
        else:
            assert_broken(case, heard, End.TRUNCATED)


@every
@pytest.mark.parametrize("ending", [END, b"", b"zz\r\n", b"5\r\nab"])
def test_a_stream_that_misses_its_end_is_truncated_however_the_connection_ends(
    gateway: Service, upstream: ChaosUpstream, case: Case, ending: bytes
) -> None:
    async def stop(wire: Wire) -> None:
        await wire.stream(*case.events[:3])
        await wire.say(ending)

    upstream.script = stop
    assert_broken(case, ask(gateway, case), End.TRUNCATED)


@every
@pytest.mark.parametrize("kept", [0, 3])
def test_silence_beyond_the_bound_is_a_timeout_and_stops_the_upstream(
    tmp_path: Path, upstream: ChaosUpstream, case: Case, kept: int
) -> None:
    async def silent(wire: Wire) -> None:
        await wire.stream(*case.events[:kept])
        await wire.until_left()

    upstream.script = silent
    with service(tmp_path, upstream=upstream.url, upstream_section={"dialects": list(CASES), "timeout_s": 0.3}) as gateway:
        assert_broken(case, ask(gateway, case), End.TIMEOUT)
        assert upstream.wires[-1].hung_up.wait(5)


@every
def test_repeated_ids_and_events_are_passed_on_as_they_are(gateway: Service, upstream: ChaosUpstream, case: Case) -> None:
    *most, last = case.said(["a", "b"])
    sent = b"".join(b"id: 7\n" + event for event in [most[0], *most, last])

    async def repeat(wire: Wire) -> None:
        await wire.stream(sent)
        await wire.say(END)

    upstream.script = repeat
    heard = ask(gateway, case)
    assert_whole(heard, case, sent)
    assert case.text(heard.record.response) == "ab"


GARBAGE = [
    b"\xff\xfe\x00\x80 garbage\n\n",
    b"data: \xc3\x28\n\n",
    b'data: {"half": \n\n',
    b"data: " + b"[" * 3000 + b"\n\n",
    b'data: {"choices": "x", "type": ["message_stop"], "delta": 3, "index": -1e400}\n\n',
    b'data: {"type": "content_block_delta", "index": 99, "delta": {"type": "text_delta", "text": "\\ud800"}}\n\n',
    b"event: response.output_item.done\ndata: null\n\n",
    b"event: \nid\nretry: soon\n\n",
    b": only a comment\n\n\n\n\n",
    b"data\n\n",
]


@every
def test_garbage_between_events_changes_nothing_of_what_is_understood(gateway: Service, upstream: ChaosUpstream, case: Case) -> None:
    first, *rest = case.said(["a", "b"])
    sent = b"".join([first, *(event for pair in itertools.zip_longest(GARBAGE, rest[:-1], fillvalue=b"") for event in pair), rest[-1]])

    async def garble(wire: Wire) -> None:
        await wire.stream(sent[:700], sent[700:])
        await wire.say(END)

    upstream.script = garble
    heard = ask(gateway, case)
    assert_whole(heard, case, sent)
    assert case.text(heard.record.response) == "ab"


@every
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_bytes_whatever_upset_the_tap_or_get_lost_in_it(case: Case, data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([*GARBAGE, *case.events, b"\n", b"\r", b"\r\n"]))))
    tap, left = case.dialect.tap(), b""
    for piece in pieces:
        done = tap.done
        left += tap.feed(piece)
        assert not done or not tap.feed(b"")
    tap.finish()
    tap.assembly.completion()
    assert left + tap.held == b"".join(pieces)
    if tap.assembly.finished():
        assert set(case.events[-case.closing :]) & set(pieces) or case.dialect is CHAT


@every
@pytest.mark.parametrize(
    "said",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"",
    ],
)
def test_what_is_not_http_is_an_upstream_error(gateway: Service, upstream: ChaosUpstream, case: Case, said: bytes) -> None:
    upstream.script = lambda wire: wire.say(said)
    answer = gateway.request("POST", case.path, case.body)
    assert answer.status == 502
    assert answer.json["error"]["hint"]
    assert gateway.record(answer).end is End.UPSTREAM_ERROR


@every
def test_a_body_shorter_than_its_length_is_truncated(gateway: Service, upstream: ChaosUpstream, case: Case) -> None:
    head = HEAD.replace(b"transfer-encoding: chunked", b"content-length: 100000")
    upstream.script = lambda wire: wire.say(head + b"".join(case.events[:3]))
    assert_broken(case, ask(gateway, case), End.TRUNCATED)


@every
def test_a_malformed_chunk_in_a_whole_answer_holds_nobody_up(gateway: Service, upstream: ChaosUpstream, case: Case) -> None:
    async def malformed(wire: Wire) -> None:
        await wire.say(HEAD.replace(b"text/event-stream", b"application/json"))
        await wire.chunks(b'{"id": "x", ')
        await asyncio.sleep(0.05)  # so that it is waited for: the HTTP client then never wakes up by itself
        await wire.say(b"zz\r\n")

    upstream.script = malformed
    answer = gateway.request("POST", case.path, {**case.body, "stream": False})
    assert answer.status == 502
    assert gateway.record(answer).end is End.TRUNCATED


@every
def test_five_megabytes_pass_through_and_are_kept(gateway: Service, upstream: ChaosUpstream, case: Case) -> None:
    texts = [f"{number:08d}" + "x" * 8000 for number in range(MANY_BYTES // 8008)]
    events = case.said(texts)

    async def much(wire: Wire) -> None:
        await wire.stream(*(b"".join(events[place : place + 7]) for place in range(0, len(events), 7)))
        await wire.say(END)

    upstream.script = much
    answer = gateway.request("POST", case.path, case.body)
    assert answer.raw == b"".join(events)
    record = gateway.record(answer)
    assert record.end is End.COMPLETE
    assert case.text(record.response) == "".join(texts)


def begin(gateway: Service, case: Case, *, buffer_bytes: int = 0) -> tuple[http.client.HTTPConnection, socket.socket]:
    """A request under way, and the socket to leave by."""
    connection = gateway.connect()
    sock = socket.socket()
    if buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    sock.settimeout(20)
    sock.connect((connection.host, connection.port))
    connection.sock = sock
    connection.request("POST", case.path, json.dumps(case.body), {"content-type": "application/json"})
    return connection, sock


@pytest.mark.alone
@every
@pytest.mark.parametrize("kept", [None, 0, 4])
def test_a_client_that_leaves_stops_the_upstream_at_once(gateway: Service, upstream: ChaosUpstream, case: Case, kept: int | None) -> None:
    """None: before the upstream has said anything; 0: after its head alone."""

    async def wait(wire: Wire) -> None:
        if kept is not None:
            await wire.stream(*case.events[:kept])
        await wire.until_left()

    upstream.script = wait
    before, seen = gateway.store.counts()["records"], len(upstream.wires)
    connection, sock = begin(gateway, case)
    until(lambda: len(upstream.wires) > seen)
    if kept is not None:
        response = connection.getresponse()
        if kept:
            assert response.read(len(b"".join(case.events[:kept]))) == b"".join(case.events[:kept])
        response.close()
    sock.close()
    connection.close()
    left_at = time.monotonic()
    assert upstream.wires[-1].hung_up.wait(5)
    assert time.monotonic() - left_at < 1
    until(lambda: gateway.store.counts()["records"] == before + 1)
    record = gateway.store.records("default")[-1]
    assert record.end is End.CLIENT_GONE
    assert json.dumps(record.response) == json.dumps(reassembled(case, b"".join(case.events[: kept or 0]))[0])


@every
def test_a_client_that_does_not_read_stops_the_upstream_from_sending_and_holds_nobody_up(
    gateway: Service, upstream: ChaosUpstream, case: Case
) -> None:
    piece = case.said(["x" * 60_000])[-3]
    slow = {"sent": False}

    async def endless(wire: Wire) -> None:
        if slow["sent"]:
            await wire.stream(*case.events)
            await wire.say(END)
            return
        slow["sent"] = True
        await wire.stream(*case.said([])[:2])
        while True:
            await wire.chunks(piece)

    upstream.script = endless
    connection, sock = begin(gateway, case, buffer_bytes=16_384)
    assert sock.recv(100)
    wire = until(lambda: slow["sent"] and upstream.wires[-1])
    stands = until(lambda: stands_still(wire))
    assert stands < kernels_bytes() + OURS_BYTES
    for _ in range(20):
        assert ask(gateway, case).record.end is End.COMPLETE
    assert wire.sent_bytes == stands
    took = 0
    while took < 2 * stands:  # it goes on when the client does
        took += len(sock.recv(1 << 20))
    assert wire.sent_bytes > stands
    sock.close()
    connection.close()
    assert wire.hung_up.wait(5)


def kernels_bytes() -> int:
    """What the system's buffers of two connections may hold at most, on both sides of each."""
    return 2 * sum(int(Path(f"/proc/sys/net/ipv4/tcp_{kind}mem").read_text().split()[2]) for kind in "rw")


def stands_still(wire: Wire) -> int:
    """What was sent, if nothing more was in a while."""
    before = wire.sent_bytes
    wire.hung_up.wait(0.3)
    return before if before and wire.sent_bytes == before else 0
