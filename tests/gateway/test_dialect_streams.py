"""Streams with named events: split anywhere, and put together to what they would have been unstreamed."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.gateway.dialects import MESSAGES, RESPONSES, Dialect
from tests.support import dialects

CASES = {
    "messages": (MESSAGES, dialects.message_events, dialects.message),
    "responses": (RESPONSES, dialects.response_events, dialects.response),
}
both = pytest.mark.parametrize("name", list(CASES))


def tricky(name: str) -> list[bytes]:
    """The events of a stream, with what must not be taken for its end."""
    _, events, _ = CASES[name]
    decoy = {"type": "ping", "text": "event: message_stop\n\ndata: response.completed\n\n"}
    return [b": a comment\n\n", events()[0], b"id: 3\nevent: ping\n" + f"data: {json.dumps(decoy)}\n\n".encode(), *events()[1:]]


@both
@given(st.sampled_from([b"\n", b"\r\n", b"\r"]), st.sets(st.integers(0, 4000)), st.booleans(), st.booleans())
def test_a_stream_may_be_split_anywhere(name: str, end: bytes, cuts: set[int], last_blank_line: bool, names: bool) -> None:
    dialect, events, answer = CASES[name]
    pieces = tricky(name) if names else [b"data:" + piece.partition(b"data:")[2] for piece in events()]
    whole = b"".join(pieces).replace(b"\n", end)
    last = pieces[-1].replace(b"\n", end)
    if not last_blank_line:
        whole = whole.removesuffix(end + end)
    tap, left = dialect.tap(), b""
    places = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    for start, stop in itertools.pairwise(places):
        left += tap.feed(whole[start:stop])
        assert len(left) <= len(whole) - len(last) + (0 if last_blank_line else 2 * len(end))
    tap.finish()
    assert left + tap.held == whole
    assert tap.done
    assert tap.assembly.finished()
    assert json.dumps(tap.assembly.completion()) == json.dumps(answer())


@both
@given(data=st.data())
def test_a_stream_cut_off_anywhere_is_never_finished(name: str, data: st.DataObject) -> None:
    dialect, events, _ = CASES[name]
    whole = b"".join(events())
    last = whole.rindex(b"\n", 0, -2)  # before the data of the last event
    tap = dialect.tap()
    left = tap.feed(whole[: data.draw(st.integers(0, last))])
    tap.finish()
    assert not tap.assembly.finished()
    assert left in whole
    assert not left or left.endswith(b"\n\n")
    tap.assembly.completion()


def fed(dialect: Dialect, *events: bytes) -> object:
    tap = dialect.tap()
    tap.feed(b"".join(events))
    tap.finish()
    return tap.assembly


def test_a_whole_event_leaves_at_once_and_an_unfinished_one_waits() -> None:
    tap, first = MESSAGES.tap(), dialects.message_events()[0]
    assert tap.feed(first[:-1]) == b""
    assert tap.feed(first[-1:] + b"event: ping\n") == first
    assert tap.held == b"event: ping\n"


def test_a_response_whose_last_event_leaves_out_the_items_gets_those_that_came() -> None:
    bare = {name: value for name, value in dialects.response().items() if name != "output"}
    for last in (bare, {**bare, "output": []}):
        assembly = fed(RESPONSES, *dialects.response_events()[:-1], dialects.named("response.completed", response=last))
        assert assembly.finished()
        assert assembly.completion()["output"] == dialects.response()["output"]


def test_a_response_that_was_cut_off_is_put_together_from_its_pieces() -> None:
    events = dialects.response_events()
    found = fed(RESPONSES, *events[:6]).completion()
    assert (found["status"], found["output"][0]["summary"][0]["text"]) == ("in_progress", "hm, hm")
    assert fed(RESPONSES, *events[:10]).completion()["output"][1]["content"][0]["text"] == "hel"
    assert fed(RESPONSES, *events[:16]).completion()["output"][2]["arguments"] == json.dumps(dialects.INPUT)[:9]


def test_a_message_that_was_cut_off_keeps_what_came() -> None:
    events = dialects.message_events()
    assert fed(MESSAGES, *events[:9]).completion()["content"][1] == {"type": "text", "text": "hel"}
    cut = fed(MESSAGES, *events[:14]).completion()
    assert cut["content"][2]["input"] == json.dumps(dialects.INPUT)[:9]
    assert cut["stop_reason"] is None


def test_kinds_of_blocks_and_deltas_that_are_not_known_are_kept() -> None:
    events = [
        dialects.message_events()[0],
        dialects.named("content_block_start", index=0, content_block={"type": "text", "text": "", "citations": None}),
        dialects.named("content_block_delta", index=0, delta={"type": "citations_delta", "citation": {"title": "a"}}),
        dialects.named("content_block_delta", index=0, delta={"type": "citations_delta", "citation": {"title": "b"}}),
        dialects.named("content_block_start", index=1, content_block={"type": "compaction", "content": None}),
        dialects.named("content_block_delta", index=1, delta={"type": "compaction_delta", "content": "short"}),
    ]
    content = fed(MESSAGES, *events).completion()["content"]
    assert content[0]["citations"] == [{"title": "a"}, {"title": "b"}]
    assert content[1] == {"type": "compaction", "content": "short"}


@both
def test_what_is_no_event_does_no_harm(name: str) -> None:
    assembly = CASES[name][0].tap().assembly
    kinds = [json.loads(event.partition(b"data:")[2])["type"] for event in CASES[name][1]()]
    for kind in ["unknown", "response.x.delta", *kinds]:
        for odd in (
            {},
            {"index": "x", "output_index": [], "delta": 3, "item": 3, "part": 3, "message": 3, "response": 3, "content_block": 3},
        ):
            assembly.add({"type": kind, **odd})
    for odd in (None, 3, "x", [], {"type": 3}, {"type": ["x"]}):
        assembly.add(odd)
    assembly.completion()
