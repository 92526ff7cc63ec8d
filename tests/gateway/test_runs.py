"""Runs of events read as one: they make the same answer as each by itself, whatever comes in between or only looks alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.gateway.assembly import Assembly
from reef.gateway.runs import Runs
from reef.gateway.sse import Tap

COMPACT, SPACED = (",", ":"), (", ", ": ")


def data(delta: Any, *, index: int = 0, separators: tuple[str, str] = COMPACT, ascii_only: bool = True, **more: Any) -> bytes:
    chunk = {"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": None}], **more}
    return json.dumps(chunk, separators=separators, ensure_ascii=ascii_only).encode()


def answer(events: Sequence[bytes], *, readings: int) -> Any:
    """What a stream of ``events`` makes, read in so many goes."""
    tap = Tap(Assembly)
    size = -(-len(events) // readings) or 1
    for start in range(0, len(events), size):
        tap.feed(b"".join(b"data: " + event + b"\n\n" for event in events[start : start + size]))
        tap.catch_up()
    return tap.assembly.completion()


TRICKY = ['"', "\\", '\\"', '","reasoning":"', "\n", "\U0001f600"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(TRICKY)
KEYS = st.sampled_from(["content", "reasoning_content", "reasoning", "role", "refusal"])
EVENTS = st.builds(
    data,
    st.builds(lambda key, text: {key: text}, KEYS, TEXTS) | st.dictionaries(KEYS, TEXTS, max_size=2),
    index=st.sampled_from([0, 0, 0, 1]),
    separators=st.sampled_from([COMPACT, SPACED]),
    ascii_only=st.booleans(),
)
STREAMS = st.lists(EVENTS.flatmap(lambda event: st.integers(1, 3).map(lambda times: [event] * times)), max_size=8).map(
    lambda runs: [event for run in runs for event in run]
)


@given(STREAMS, st.integers(1, 3))
def test_runs_make_the_same_answer_as_their_events(events: list[bytes], readings: int) -> None:
    assert answer(events, readings=readings) == answer(events, readings=len(events) or 1)


def test_a_run_becomes_one_event_and_goes_on_in_the_next_reading() -> None:
    runs = Runs()
    head, last = data({"role": "assistant", "content": ""}), data({}, usage={"prompt_tokens": 1})
    words = [data({"content": f"{number} \\ \n"}, separators=SPACED) for number in range(10)]
    thoughts = [data({"reasoning": "hm"}) for _ in range(5)]
    assert len(runs.joined([head, *thoughts, *words])) == 3
    assert len(runs.joined([*words, last])) == 2


ODD = {
    "another key after the text": b'{"choices":[{"delta":{"content":"a","reasoning":"b"},"finish_reason":null}]}',
    "the same key twice": b'{"choices":[{"delta":{"content":"a","content":"b"},"finish_reason":null}]}',
    "an escape half said": b'{"choices":[{"delta":{"content":"a\\"},"finish_reason":null}]}',
    "no text at all": b'{"choices":[{"delta":{"content":"},"finish_reason":null}]}',
    "no escape": b'{"choices":[{"delta":{"content":"\\x"},"finish_reason":null}]}',
    "no UTF-8": b'{"choices":[{"delta":{"content":"\xff"},"finish_reason":null}]}',
    "a number": b'{"choices":[{"delta":{"content":1},"finish_reason":null}]}',
    "not JSON": b'{"choices":[{"delta":{"content":"a"},"finish_reason":null}]',
    "two choices": b'{"choices":[{"index":1,"delta":{"content":"x"}},{"delta":{"content":"a"},"finish_reason":null}]}',
    "a delta that is none": b'{"choices":[],"x":[{"delta":{"content":"a"},"finish_reason":null}]}',
    "no object": b'["delta",{"x":{"y":0},"delta":{"content":"a"}}]',
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_only_looks_alike_is_no_part_of_a_run(odd: bytes) -> None:
    like = b'{"choices":[{"delta":{"content":"%b"},"finish_reason":null}]}'
    for events in (
        [like % b"a", like % b"b", odd, like % b"c", like % b"d"],
        [odd, odd, like % b"a", like % b"b"],
        [like % b"a", odd, odd],
    ):
        assert answer(events, readings=1) == answer(events, readings=len(events))
