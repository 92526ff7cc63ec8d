"""The tap: split anywhere, everything but the end leaves at once, and what was streamed is put together as it was."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from reef.gateway.assembly import Assembly
from reef.gateway.sse import Tap
from tests.support.upstream import DONE, chunk, greeting

TRICKY = [
    b": a comment\n\n",
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "the text data: [DONE] is not the end"}),
    b"event: message\nid: 3\n" + chunk({"content": '\u00e9\U0001f600 \\ " \n'}),
    chunk({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]}),
    chunk({}, finish="tool_calls"),
    chunk(None, usage={"prompt_tokens": 1}),
    DONE,
]


@given(st.sampled_from([b"\n", b"\r\n", b"\r"]), st.sets(st.integers(0, 2000)), st.booleans())
def test_a_stream_may_be_split_anywhere(end: bytes, cuts: set[int], last_blank_line: bool) -> None:
    whole = b"".join(TRICKY).replace(b"\n", end)
    if not last_blank_line:
        whole = whole.removesuffix(end + end)
    tap, left = Tap(), b""
    places = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    for start, stop in itertools.pairwise(places):
        left += tap.feed(whole[start:stop])
        assert b"\ndata: [DONE]" not in left.replace(b"\r", b"\n")
    tap.finish()
    assert left + tap.held == whole
    assert tap.done or not last_blank_line
    assert tap.assembly.finished()
    message = tap.assembly.completion()["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": 'the text data: [DONE] is not the end\u00e9\U0001f600 \\ " \n',
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }


def test_a_whole_line_leaves_at_once_and_an_unfinished_one_waits() -> None:
    tap = Tap()
    first = chunk({"content": "a"})
    assert tap.feed(first[:-1]) == first[:-1]
    assert tap.feed(b"\ndata: {") == b"\n"
    assert tap.held == b"data: {"


def test_what_comes_after_done_waits_too() -> None:
    tap = Tap()
    tap.feed(b"".join(greeting()[:-1]))
    assert tap.feed(DONE) == b""
    assert tap.feed(b": bye\n\n") == b""
    assert tap.held == DONE + b": bye\n\n"


def assembled(*deltas: dict[str, object]) -> dict[str, object]:
    assembly = Assembly()
    for delta in deltas:
        assembly.add({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    return assembly.completion()["choices"][0]["message"]


def test_parallel_tool_calls_are_told_apart_by_index() -> None:
    calls = assembled(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}],
        },
        {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}, {"index": 1, "function": {"arguments": "}"}}]},
    )["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [("a", "f", "{}"), ("b", "g", "{}")]


def test_servers_that_repeat_names_or_leave_the_index_out_are_understood() -> None:
    calls = assembled(
        {"tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "}"}}]},
        {"tool_calls": [{"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    )["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [("a", "f", "{}"), ("b", "f", "{}")]


def test_unknown_keys_are_kept() -> None:
    message = assembled(
        {"role": "assistant", "reasoning_content": "I ", "reasoning_details": [{"index": 0, "type": "x", "text": "a"}], "flag": 1},
        {"reasoning_content": "think", "reasoning_details": [{"index": 0, "type": "x", "text": "b"}], "flag": 2, "refusal": None},
    )
    assert message == {
        "role": "assistant",
        "reasoning_content": "I think",
        "reasoning_details": [{"index": 0, "type": "x", "text": "ab"}],
        "flag": 2,
        "refusal": None,
    }


def test_several_choices_must_each_have_ended() -> None:
    assembly = Assembly()
    assembly.add(
        {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]}
    )
    assert assembly.finished()
    assert not assembly.finished(choices=2)
    assembly.add({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [1]}}]})
    assert not assembly.finished(choices=2)
    assembly.add({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [2]}, "finish_reason": "length"}], "usage": {"x": 1}})
    assert assembly.finished(choices=2)
    found = assembly.completion()
    assert list(found) == ["id", "object", "choices", "usage"]
    assert found["object"] == "chat.completion"
    assert [choice["message"]["content"] for choice in found["choices"]] == ["a", "b"]
    assert found["choices"][0]["logprobs"] == {"content": [1, 2]}


def test_what_is_no_chunk_does_no_harm() -> None:
    assembly = Assembly()
    for odd in (None, 3, "x", [], {"choices": 3}, {"choices": [None, {"delta": 3}, {"index": "x", "delta": {"tool_calls": [3]}}]}):
        assembly.add(odd)
    assert not assembly.finished()
    assert assembly.completion() is not None
