"""A request that goes on from an earlier one: it is read from where the two differ, and found to be what reading all of it would find."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reef.experience import database, ids, jsontext
from reef.experience.committer import Committer
from reef.experience.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from reef.experience.framing import MOST_AHEAD, Ahead, Decoder, Encoder
from reef.experience.prompts import Prompt, Text
from reef.experience.recent import MOST, MOST_BYTES, SHORTEST, common_beginning
from reef.experience.rope import MOST_PIECES, Rope
from reef.experience.rows import Dismantler
from reef.experience.store import ExperienceStore
from reef.types import JSON, Record
from tests.experience.test_roundtrip import record

Writer = Callable[[JSON], bytes]
LONG = "Read before you write. " * 1000


def compact(value: JSON) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def spaced(value: JSON) -> bytes:
    return json.dumps(value).encode()


def indented(value: JSON) -> bytes:
    return json.dumps(value, indent=1).encode()


def dismantler() -> Dismantler:
    return Dismantler(lambda _scenario, _session: [], lambda _opening: [])


def read(data: bytes, *, before: Text | None, by: Dismantler, dialect: Dialect = CHAT) -> tuple[Text, Prompt]:
    """A text taken apart, with its turns still there."""
    shared = 0 if before is None else common_beginning(before.rope.whole(), data)
    text = Text(Rope([data]), before=before, shared=shared)
    rows: Any = type("Rows", (), {"blobs": {}})()
    by._now = 1.0
    return text, by._prompt(record({}, None)._replace(dialect=dialect.name), text, rows)


def check(first: bytes, second: bytes, *, goes_on: bool | None, dialect: Dialect = CHAT) -> None:
    """The second text after the first is read as it is read alone; ``goes_on`` says whether in part."""
    by = dismantler()
    before, known = read(first, before=None, by=by, dialect=dialect)
    known.shrink()
    _, alone = read(second, before=None, by=by, dialect=dialect)
    _, after = read(second, before=before, by=by, dialect=dialect)
    assert (after.names, after.led, after.system, after.envelope) == (alone.names, alone.led, alone.system, alone.envelope)
    assert [after.text(place) for place in range(len(after.names))] == [alone.text(place) for place in range(len(alone.names))]
    assert list(after.turns or ()) == list(alone.turns or ())
    if goes_on is not None:
        assert (len(after.texts) < len(after.names)) == goes_on
    if after.outline is not None:
        assert second[after.outline.end : after.outline.end + 1] == b"]"
        for place, start in enumerate(after.outline.starts[after.led :]):
            assert json.JSONDecoder().raw_decode(second[start:].decode().lstrip())[0] == (alone.turns or ())[place]


def turn(text: str, role: str = "user", **more: JSON) -> JSON:
    return {"role": role, "content": text, **more}


SYSTEM = turn(LONG, "system")
TALK = [SYSTEM, turn("one"), turn('two "quoted" \\ [{', "assistant"), turn("three é 🪸")]


@pytest.mark.parametrize("write", [compact, spaced, indented])
@pytest.mark.parametrize(
    ("dialect", "envelope"),
    [
        (CHAT, {"model": "m", "messages": None, "stream": True, "tools": [{"messages": [1, {"a": []}]}]}),
        (CHAT, {"messages": None}),
        (MESSAGES, {"system": [{"text": "x"}], "messages": None, "metadata": {"messages": []}}),
        (RESPONSES, {"instructions": 'say "messages": [', "input": None}),
    ],
)
def test_a_longer_history_is_read_from_where_it_is_new(dialect: Dialect, envelope: dict[str, JSON], write: Writer) -> None:
    def body(turns: Sequence[JSON]) -> bytes:
        return write({**envelope, dialect.key: turns})

    answer = turn("", "assistant", tool_calls=[{"function": {"arguments": '{"a": "]}"}'}}])
    check(body(TALK), body([*TALK, answer, turn("four")]), goes_on=True, dialect=dialect)
    check(body(TALK), body([*TALK[:-1], turn("three, said otherwise"), turn("four")]), goes_on=True, dialect=dialect)
    check(body(TALK), body(TALK), goes_on=True, dialect=dialect)
    check(body(TALK), body(TALK[:-1]), goes_on=True, dialect=dialect)
    check(body(TALK), body([*TALK, 5, [], "text", None, turn("four")]), goes_on=True, dialect=dialect)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"messages": TALK, "stream": False}, {"messages": [*TALK, turn("4")], "stream": True}, id="another envelope"),
        pytest.param({"messages": [turn("a"), turn("b")]}, {"messages": [turn("x"), turn("b")]}, id="nothing in common"),
        pytest.param({"messages": [SYSTEM]}, {"messages": [SYSTEM, turn("b", "developer"), turn("c")]}, id="the system says more"),
        pytest.param({"messages": [turn("a"), "text"]}, {"messages": [turn("a"), "text", turn("c")]}, id="a turn that is no object"),
        pytest.param({"messages": [turn("a"), 5]}, {"messages": [turn("a"), 5, turn("c")]}, id="a turn that is a number"),
        pytest.param({"messages": "text", "x": [turn("a")]}, {"messages": "text", "x": [turn("a"), turn("b")]}, id="no list"),
        pytest.param({"messages": 1, "x": [turn("a")]}, {"messages": 1, "x": [turn("a"), turn("b")]}, id="a number"),
        pytest.param({"x": {"messages": TALK}}, {"x": {"messages": [*TALK, turn("b")]}}, id="further down"),
        pytest.param({"messages": []}, {"messages": [turn("a")]}, id="no turns before"),
    ],
)
def test_what_is_not_just_a_longer_history_is_read_as_a_whole(first: JSON, second: JSON) -> None:
    check(compact(first), compact(second), goes_on=False)


A, B, C, D = (compact(turn(letter)).decode() for letter in "abcd")
AGAIN = '"mess\\u0061ges"'
"""The key once more, written otherwise."""


MISLEADING = {
    "twice": (f'{{"messages":[{A},{B}],"messages":[{C},{D}]}}', f'{{"messages":[{A},{B},{C}],"messages":[{C},{D}]}}'),
    "twice, otherwise": (f'{{"messages":[{A},{B}],{AGAIN}:[{C},{D}]}}', f'{{"messages":[{A},{B},{C}],{AGAIN}:[{C},{D}]}}'),
    "otherwise first": (f'{{{AGAIN}:[{C},{D}],"messages":[{A},{B}]}}', f'{{{AGAIN}:[{C},{D}],"messages":[{A},{B},{C}]}}'),
    "twice in what is new": (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A},{B}],"messages":[{C}],"x":[{A}]}}'),
    "ends sooner": (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A}],"messages":[{A},{B}]}}'),
    "other list": (f'{{"messages":[{A},{B}],"x":1}}', f'{{"messages":[{A}],"y":[{B}],"x":1}}'),
    "rest in a turn": (f'{{"messages":[{A},{B}],"x":1}}', f'{{"messages":[{A},{{"c":"b","x":[{B}],"x":1}}],"x":1}}'),
    "rest in text": (f'{{"messages":[{A},{B}]}}', f'{{"messages":[{A}, {{"a":"]}}"}} ]}}'),
}
"""Two texts each, of which the second is not what it seems to be after the first."""


@pytest.mark.parametrize(("first", "second"), MISLEADING.values(), ids=MISLEADING)
def test_texts_made_to_mislead_are_read_as_they_are(first: str, second: str) -> None:
    check(first.encode(), second.encode(), goes_on=None)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_other_encodings_are_read_as_a_whole(encoding: str) -> None:
    first, second = ({"messages": TALK[: 2 + more]} for more in (0, 1))
    check(json.dumps(first).encode(encoding), json.dumps(second).encode(encoding), goes_on=False)


strings = st.text(alphabet=st.sampled_from('ab"\\[]{},:\n é🪸'), max_size=6)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": strings}, optional={"x": st.lists(strings)}
)
envelopes = st.dictionaries(strings, st.one_of(strings, st.lists(strings, max_size=2), st.integers()), max_size=2)


@settings(max_examples=400)
@given(st.lists(turns | strings | st.integers(), max_size=5), st.lists(turns | strings, max_size=4), st.integers(0, 5), envelopes,
       envelopes, st.booleans(), st.sampled_from([compact, spaced, indented]))  # fmt: skip
def test_whatever_follows_whatever_is_read_as_it_is_read_alone(
    before: list[JSON], new: list[JSON], kept: int, head: dict[str, JSON], tail: dict[str, JSON], same: bool, write: Writer
) -> None:
    first = write({**head, "messages": before, **tail})
    second = write({**head, "messages": [*before[:kept], *new], **(tail if same else {})})
    check(first, second, goes_on=None)


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_common_beginnings(start: bytes, one: bytes, other: bytes) -> None:
    found = common_beginning(start + one, start + other)
    assert found >= len(start)
    assert (start + one)[:found] == (start + other)[:found]
    assert (start + one)[found : found + 1] != (start + other)[found : found + 1] or found == min(len(start + one), len(start + other))


@pytest.mark.parametrize("size", [8191, 8192, 8193, 16384, 20000])
def test_common_beginnings_of_long_texts(size: int) -> None:
    text = b"x" * size
    assert common_beginning(text, text) == size
    assert common_beginning(text + b"a", text + b"b") == size
    assert common_beginning(text, text + b"b") == size


@given(st.lists(st.tuples(st.integers(0, 60), st.binary(min_size=1, max_size=9)), max_size=100), st.integers(0, 100))
def test_a_text_in_pieces_is_the_text(edits: list[tuple[int, bytes]], start: int) -> None:
    plain, rope = b"begin", Rope([b"begin"])
    for most, rest in edits:
        shared = min(most, len(plain)) or 1
        plain, rope = plain[:shared] + rest, rope.begun(shared, rest)
        assert (rope.whole(), rope.size) == (plain, len(plain))
        assert len(rope._pieces) <= MOST_PIECES
    assert rope.behind(min(start, len(plain))) == plain[start:]


def exchange(turns: Sequence[JSON], *, session: str | None = "run", **more: JSON) -> tuple[Record, bytes]:
    sent = record({"model": "m", "messages": list(turns), **more}, None)._replace(id=ids.receipt(), session=session)
    return sent, spaced(sent.request)


def read_all(decoder: Decoder, pieces: Sequence[bytes]) -> list[tuple[Record, Text]]:
    """What arrives of records that came with the texts of their requests."""
    return [(item[0], item[1]) for item in decoder.decode(b"".join(pieces)) if not isinstance(item, str) and item[1] is not None]


def cross(encoder: Encoder, decoder: Decoder, item: Record, text: bytes) -> tuple[Record, Text]:
    """What arrives of one record."""
    (arrived,) = read_all(decoder, encoder.encode([item], [(text, None)]))
    return arrived


def test_only_what_is_new_of_a_history_is_sent() -> None:
    encoder, decoder = Encoder(), Decoder()
    talk = list(TALK)
    for number in range(20):
        talk.append(turn(f"{number}: {LONG}"))
        item, text = exchange(talk)
        pieces = encoder.encode([item], [(text, None)])
        assert sum(map(len, pieces)) < 2 * len(LONG) or number == 0
        ((_, found),) = read_all(decoder, pieces)
        assert found.rope.whole() == text


def test_agents_that_take_turns_do_not_meet() -> None:
    encoder = Encoder()
    for number in range(3):
        for session in ("one", "two", None):
            item, text = exchange([turn(f"{session}: {LONG}"), *[turn("next")] * number], session=session)
            assert sum(map(len, encoder.encode([item], [(text, None)]))) < 1000 or number == 0


def test_what_is_remembered_is_bounded() -> None:
    encoder, decoder = Encoder(), Decoder()
    for number in range(3 * MOST):
        item, text = exchange([turn(f"{number}: {LONG}")], session=str(number))
        cross(encoder, decoder, item, text)
    assert len(encoder._recent) == MOST
    assert len(decoder._places) == MOST + 1
    large = "x" * (MOST_BYTES // 10)
    for number in range(25):
        item, text = exchange([turn(f"{number}: {large}")], session=f"large {number}")
        cross(encoder, decoder, item, text)
    assert encoder._recent.bytes <= MOST_BYTES
    assert sum(text.rope.size for _, text in decoder._places.values()) <= 2 * MOST_BYTES


def test_one_that_grew_beyond_what_is_remembered_is_still_sent() -> None:
    encoder, decoder = Encoder(), Decoder()
    for size in (SHORTEST, MOST_BYTES // 4, MOST_BYTES // 2, SHORTEST):
        item, text = exchange([turn("x" * size)])
        assert cross(encoder, decoder, item, text)[1].rope.whole() == text


def test_nothing_is_taken_for_what_it_is_not_when_a_batch_did_not_come() -> None:
    encoder, decoder = Encoder(), Decoder()
    item, text = exchange([turn(LONG)])
    cross(encoder, decoder, item, text)
    encoder.encode([item], [(text.replace(b"Read", b"Look"), None)])
    with pytest.raises(RuntimeError, match="2 texts were sent to this place and 1 came"):
        decoder.decode(b"".join(encoder.encode([item], [(text, None)])))


def test_a_batch_that_cannot_be_written_changes_nothing_that_is_remembered() -> None:
    encoder, decoder = Encoder(), Decoder()
    item, text = exchange([turn(LONG)])
    cross(encoder, decoder, item, text)
    with pytest.raises(ValueError, match="JSON"):
        encoder.encode([item, item._replace(usage={"x": float("nan")}, model="\ud83e")], [(text, None), (None, None)])  # type: ignore[dict-item]
    assert cross(encoder, decoder, item, text)[1].rope.whole() == text


def send_ahead(encoder: Encoder, decoder: Decoder, item: Record, text: bytes) -> Ahead:
    """A request on its way before its record."""
    sent = encoder.ahead(text, scenario=item.scenario, session=item.session, dialect=item.dialect)
    assert sent is not None
    decoder.read_ahead(b"".join(sent[1]))
    return sent[0]


def test_requests_sent_ahead_are_those_of_their_records_in_whatever_order_these_come() -> None:
    encoder, decoder, by = Encoder(), Decoder(), dismantler()
    talk = list(TALK)
    sent = []
    for number in range(4):
        talk += [turn(f"{number}: {LONG}"), turn("yes", "assistant")]
        item, text = exchange(talk)
        sent.append((item, text, send_ahead(encoder, decoder, item, text) if number != 2 else text))
    for item, text, ahead in sent[::-1]:
        ((arrived, found),) = read_all(decoder, encoder.encode([item], [(ahead, None)]))
        assert (arrived.id, found.rope.whole()) == (item.id, text)
        by.rows([arrived], [found])
        assert found.prompt is not None
        assert len(found.prompt.names) == len(item.request["messages"]) - 1
    assert not decoder._ahead
    assert not encoder._ahead


def test_a_request_sent_ahead_to_a_process_that_is_gone_is_sent_again() -> None:
    item, text = exchange(TALK)
    ahead = send_ahead(Encoder(), Decoder(), item, text)
    ((_, found),) = read_all(Decoder(), Encoder().encode([item], [(ahead, None)]))
    assert found.rope.whole() == text


def test_what_is_no_request_is_refused_with_its_record_and_not_before() -> None:
    encoder, decoder, by = Encoder(), Decoder(), dismantler()
    item, _ = exchange(TALK)
    ahead = send_ahead(encoder, decoder, item, b"{no")
    ((arrived, found),) = read_all(decoder, encoder.encode([item], [(ahead, None)]))
    with pytest.raises(ValueError, match="cannot be read again"):
        by.rows([arrived], [found])


def test_no_more_are_sent_ahead_than_can_be_held() -> None:
    encoder, decoder = Encoder(), Decoder()
    item, text = exchange(TALK)
    held = [send_ahead(encoder, decoder, item, text) for _ in range(MOST_AHEAD)]
    assert encoder.ahead(text, scenario="s", session=None, dialect="chat") is None
    encoder.encode([item], [(held[0], None)])
    assert encoder.ahead(text, scenario="s", session=None, dialect="chat") is not None


def test_nothing_but_the_last_text_of_each_agent_is_held() -> None:
    encoder, decoder, by = Encoder(), Decoder(), dismantler()
    for number in range(3):
        item, text = exchange([*TALK, *(turn(str(place)) for place in range(number))])
        found, sent = cross(encoder, decoder, item, text)
        by.rows([found], [sent])
        assert sent._before is None
        assert sent.prompt is not None
        assert sent.prompt.turns is None


def test_histories_are_stored_and_given_back(database_url: str) -> None:
    engine = database.connect(database_url)
    database.create_tables(engine)
    encoder, committer = Encoder(), Committer(engine)
    sent: list[Record] = []
    talk = list(TALK)
    for number in range(12):
        talk.append(turn(f"{number}: {LONG}", "assistant" if number % 2 else "user"))
        item, _ = exchange(talk, stream=number == 7)
        side, _ = exchange([turn("A title for this?"), turn(f"{number} {LONG}")], session=None)
        retry = item._replace(id=ids.receipt())
        batch = [item, side, retry]
        sent += batch
        texts = [(spaced(each.request), None) for each in batch]
        assert committer.commit_encoded(b"".join(encoder.encode(batch, texts))) == ["", "", ""]
        if number == 5:  # what was taken for stored is not
            committer._dismantler.forget()
    store = ExperienceStore(engine)
    for item in sent:
        assert jsontext.dumps(store.record(item.id).request) == jsontext.dumps(item.request)
    committer.close()
