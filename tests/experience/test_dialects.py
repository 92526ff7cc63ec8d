"""What was sent and answered in any dialect is given back equal, and an answer sent back is the same turn again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reef.experience import dialects, jsontext
from reef.experience.turns import canonical_turn
from reef.types import JSON
from tests.experience.test_roundtrip import record, stored, text, values
from tests.support import dialects as scripted

turns = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": values}) | values
SHAPES = {"chat": ("messages", "choices"), "messages": ("messages", "content"), "responses": ("input", "output")}


def mixed(draw: st.DrawFn, fixed: dict[str, JSON]) -> dict[str, JSON]:
    """An object with these keys and others, in any order."""
    others = draw(st.dictionaries(text, values, max_size=3))
    return dict(draw(st.permutations([*others.items(), *fixed.items()])))


@st.composite
def exchanges(draw: st.DrawFn, name: str) -> tuple[JSON, JSON]:
    """A request and an answer in the dialect, or in what is nearly that."""
    asked, answered = SHAPES[name]
    request = mixed(draw, {"model": "m", asked: draw(st.lists(turns, max_size=5) | text | values)})
    if name == "chat":
        choices = st.lists(st.fixed_dictionaries({"index": st.integers(0, 3), "message": values, "x": values}), max_size=2)
        response = mixed(draw, {"id": "r", answered: draw(choices | values)})
    else:
        role = {"role": draw(st.just("assistant") | values)} if draw(st.booleans()) else {}
        response = mixed(draw, {"id": "r", answered: draw(st.lists(turns, max_size=4) | values), **role})
    return request, draw(st.just(response) | st.none() | values)


@pytest.mark.parametrize("name", list(SHAPES))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_exchange_is_given_back_equal_with_its_keys_in_order(tmp_path: Path, name: str, data: st.DataObject) -> None:
    request, response = data.draw(exchanges(name))
    sent = [record(request, response)._replace(dialect=name) for _ in range(2)]
    store, _ = stored(tmp_path, *sent)
    for found in (store.record(sent[0].id), *store.records("s")):
        assert json.dumps(found.request) == json.dumps(request)
        assert json.dumps(found.response) == json.dumps(response)


def test_a_record_in_a_dialect_that_is_not_known_is_given_back_all_the_same(tmp_path: Path) -> None:
    sent = record({"contents": [1], "messages": [{"a": 1}]}, {"candidates": []})._replace(dialect="gemini")
    store, _ = stored(tmp_path, sent)
    assert (store.record(sent.id).request, store.record(sent.id).response) == (sent.request, sent.response)


def meanings(*histories: list[JSON]) -> set[bytes]:
    """What each history means; one that means the same as another adds none."""
    return {jsontext.dumps_sorted([meaning for turn in history if (meaning := canonical_turn(turn)) is not None]) for history in histories}


def answered(name: str, response: JSON) -> list[JSON]:
    taken = dialects.named(name).take_answer(response)
    assert taken is not None
    return list(taken[0])


def test_a_message_and_what_the_agent_sends_back_of_it_mean_the_same() -> None:
    thinking, said, call = scripted.message()["content"]
    user = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
    resent = [
        [thinking, said, call],
        [said, call],
        [said, {**call, "cache_control": {"type": "ephemeral"}}],
    ]
    histories = [[{"role": "user", "content": "hi"}, {"content": content, "role": "assistant"}] for content in resent]
    assert len(meanings([user, *answered("messages", scripted.message())], *histories)) == 1


def test_response_items_and_what_the_agent_sends_back_of_them_mean_the_same() -> None:
    reasoning, said, call = scripted.response()["output"]
    plain = {"role": "assistant", "content": "hello"}
    bare = {"type": "function_call", "call_id": call["call_id"], "name": call["name"], "arguments": call["arguments"]}
    histories: list[list[JSON]] = [
        ["hi", reasoning, said, call],
        [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, plain, bare],
        [{"type": "message", "id": "msg_x", "role": "user", "content": "hi"}, {**said, "status": "in_progress"}, bare],
    ]
    assert len(meanings(["hi", *answered("responses", scripted.response())], *histories)) == 1


def test_what_counts_keeps_turns_apart() -> None:
    _, said, call = scripted.response()["output"]
    turns: list[JSON] = [
        said,
        {**said, "role": "user"},
        call,
        {**call, "call_id": "other"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a"},
        {"type": "item_reference", "id": "a"},
        {"type": "item_reference", "id": "b"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "b", "name": "f", "input": {}}]},
        {"role": "assistant", "tool_calls": [{"id": "a"}]},
        {"role": "assistant", "tool_calls": [{"id": "b"}]},
    ]
    assert len({json.dumps(canonical_turn(turn), sort_keys=True) for turn in turns}) == len(turns)


@pytest.mark.parametrize("odd", [None, 3, "x", [], {}, {"usage": 3}, {"usage": {"input_tokens": "x", "input_tokens_details": [1]}}])
def test_tokens_of_odd_answers_are_not_counted(odd: JSON) -> None:
    assert dialects.token_counts(odd) == {}
