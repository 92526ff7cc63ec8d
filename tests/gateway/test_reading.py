"""The gateway's reader: of a request that goes on from another only the end is parsed, and what it tells is what all of it would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reef.errors import InvalidRequest
from reef.experience import jsontext, recent
from reef.gateway import reading
from reef.gateway.reading import Reader
from reef.types import JSON
from tests.experience.test_prompts import MISLEADING, A, B, C, Writer, compact, indented, spaced, turn

LONG = "Read before you write. " * 1000


@pytest.fixture(autouse=True, scope="module")
def of_any_length() -> Iterator[None]:
    """The shortest requests are read like long ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recent, "SHORTEST", 1)
        patch.setattr(reading, "FAR", -1)
        yield


def told(text: bytes) -> dict[str, JSON] | None:
    """What the reader is to tell of a text that it does not parse as a whole; None if it is no JSON object."""
    try:
        body = jsontext.loads(text)
    except ValueError:
        return None
    return {name: type(v)() if isinstance(v, list | dict) else v for name, v in body.items()} if isinstance(body, dict) else None


def check(reader: Reader, text: bytes, *, key: str = "messages") -> bool | None:
    """Read a text; what is told is right. Whether all of it was parsed, None if it was refused."""
    expected = told(text)
    try:
        body, whole = reader.read(text, scenario="default", session="s", key=key)
    except InvalidRequest:
        assert expected is None
        return None
    assert expected is not None
    if whole:
        assert body == jsontext.loads(text)
    else:
        assert body == expected
    return whole


@pytest.mark.parametrize("write", [compact, spaced, indented])
@pytest.mark.parametrize(
    ("key", "envelope"),
    [
        ("messages", {"model": "m", "messages": None, "stream": True, "tools": [{"messages": [1, {"role": []}]}]}),
        ("messages", {"messages": None}),
        ("messages", {"": "nothing", "system": [{"text": "x"}], "messages": None, "metadata": {"messages": []}}),
        ("input", {"instructions": 'say "input": [', "input": None, "stream": False}),
    ],
)
def test_a_history_that_grows_is_parsed_once(key: str, envelope: dict[str, JSON], write: Writer) -> None:
    reader = Reader()
    turns: list[JSON] = [turn(LONG, "system"), turn("one")]
    parsed = []
    for number in range(20):
        parsed.append(check(reader, write({**envelope, key: turns}), key=key))
        turns = [*turns, turn(f'said "{number}"', "assistant", tool_calls=[{"role": "x"}]), turn(LONG)]
    assert parsed == [True, *[False] * 19]


def test_only_what_is_new_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    parse = jsontext.loads

    def loads(text: bytes) -> JSON:
        sizes.append(len(text))
        return parse(text)

    monkeypatch.setattr(reading, "FAR", 8192)
    reader = Reader()
    turns: list[JSON] = [turn(LONG, "system"), turn("one")]
    monkeypatch.setattr(jsontext, "loads", loads)
    for number in range(100):
        turns += [turn(f"{number}", "assistant"), turn("x" * 1000)]
        reader.read(compact({"model": "m", "messages": turns, "stream": True}), scenario="default", session="s", key="messages")
    assert max(sizes[3:]) < 15_000
    assert sum(sizes) < 100 * 15_000


def test_a_turn_that_is_long_gives_one_foothold() -> None:
    reader = Reader()
    for number in range(5):
        check(reader, compact({"model": "m", "messages": [turn("one"), turn(LONG + "x" * number)]}))
    (last,) = (about for about, _ in reader._recent._kept.values())
    assert [last.text[foothold.at : foothold.at + 24] for foothold in last.footholds] == [b'{"role":"user","content"']


def test_one_that_edits_its_last_turns_is_followed() -> None:
    """As agents do that mark what is to be cached."""
    reader = Reader()
    turns: list[Any] = [turn(LONG, "system")]
    parsed = []
    for number in range(12):
        turns += [turn(f"{number}", "assistant"), turn("x" * 500)]
        marked = [*turns[:-3], *({**one, "cache_control": {"type": "ephemeral"}} for one in turns[-3:])]
        parsed.append(check(reader, compact({"model": "m", "messages": marked})))
    assert parsed.count(False) >= 10


def test_what_is_no_longer_history_is_read_as_a_whole() -> None:
    reader = Reader()
    assert check(reader, compact({"stream": False, "messages": [turn("a"), turn("b")]}))
    assert check(reader, compact({"stream": False, "messages": [turn("a"), turn("b"), turn("c")]})) is False
    assert check(reader, compact({"stream": True, "messages": [turn("a"), turn("b"), turn("c")]}))
    assert check(reader, compact({"messages": "text"}))
    assert check(reader, compact({"messages": []}))
    assert check(reader, b'{"messages":[]') is None
    assert check(reader, compact({"messages": [turn("x"), turn("b")]}))
    assert check(reader, compact({"messages": [turn("x"), turn("b")]}), key="input")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *MISLEADING.values(),
        (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A},{B}],"messages":5}}'),
        (f'{{"model":"a","messages":[{A},{B}]}}', f'{{"model":"a","messages":[{A},{B}],"model":["b"]}}'),
        (f'{{"model":"a","messages":[{A},{B}]}}', f'{{"model":"a","messages":[{A},{B}],"model":"b"}}'),
        (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A},{B}],"":[]}}'),
        (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A},{B}],"":0}}'),
        (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A},],"x":[{B}]}}'),
        (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A},],"":[{B}]}}'),
        (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A},],"turns":[{B}]}}'),
        (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A},{B}]}}]'),
        (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A},{B}'),
        (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A},{B}]}}{{}}'),
        (f'{{"x":{{"messages":[{A},{B}]}}}}', f'{{"x":{{"messages":[{A},{B},{C}]}}}}'),
        (f'[{{"messages":[{A},{B}]}}]', f'[{{"messages":[{A},{B},{C}]}}]'),
        (f'{{"messages":[[{A},{B}]]}}', f'{{"messages":[[{A},{B},{C}]]}}'),
        (f'{{"messages":[{A},{{"role":[{A},{B}]}}]}}', f'{{"messages":[{A},{{"role":[{A},{B},{C}]}}]}}'),
        (f'{{"messages":[null,{A},{B}],"n":null}}', f'{{"messages":[null,{A},{B},null],"n":2}}'),
        ('{"messages":[{"role":"\\ud800"},{"role":"b"}]}', '{"messages":[{"role":"\\ud800"},{"role":"b"},{"role":"\\udfff"}]}'),
    ],
)  # fmt: skip
def test_texts_made_to_mislead_are_read_as_they_are(first: str, second: str) -> None:
    reader = Reader()
    for text in (first, second, first, second, second):
        check(reader, text.encode())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_other_encodings(encoding: str) -> None:
    reader = Reader()
    for more in range(4):
        check(reader, json.dumps({"messages": [turn("é")] * (2 + more)}).encode(encoding))


strings = st.text(alphabet=st.sampled_from('ab"\\[]{},:\n é🪸'), max_size=6)
turns = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": strings}, optional={"x": st.lists(strings, max_size=2)}),
    st.sampled_from([None, 5, "text", [], {}, [{"role": "x"}], {"content": [{"role": "y"}]}]),
)
envelopes = st.dictionaries(strings | st.sampled_from(["model", "stream"]), strings | st.lists(strings, max_size=2) | st.none(), max_size=3)
pieces = st.sampled_from(
    [
        b"",
        b"]",
        b"[",
        b"}",
        b"{",
        b",",
        b'"',
        b":",
        b"\\",
        b" ",
        b"null",
        b"1",
        b'{"role":"x"}',
        b'{"role"',
        b'],"messages":[',
        b'"":',
        b"\xff",
    ]
)


@settings(max_examples=600)
@given(st.lists(turns, max_size=5), envelopes, envelopes, st.sampled_from([compact, spaced, indented]), st.data())
def test_whatever_comes_after_whatever_is_read_as_it_is_read_alone(
    history: list[JSON], head: dict[str, JSON], tail: dict[str, JSON], write: Writer, data: st.DataObject
) -> None:
    reader = Reader()
    text = write({**head, "messages": history, **tail})
    check(reader, text)
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):  # another history
            kept = data.draw(st.integers(0, len(history)))
            history = [*history[:kept], *data.draw(st.lists(turns, max_size=3))]
            text = write({**head, "messages": history, **tail})
        else:  # something put in somewhere, or in the place of something
            start = data.draw(st.integers(0, len(text)))
            end = data.draw(st.integers(start, min(len(text), start + 3)))
            text = text[:start] + data.draw(pieces) + text[end:]
        check(reader, text)
