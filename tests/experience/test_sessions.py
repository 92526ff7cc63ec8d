"""A session's threads, what its list says of it, and what its turns say."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import NotFound
from reef.experience import ids, jsontext, sessions, telling
from reef.experience.reports import ReportDraft, insert
from reef.experience.sessions import Thread, ThreadKind, main_thread, threads
from reef.experience.telling import Kind, Part
from reef.experience.turns import canonical_turn
from reef.types import JSON, End, Record
from tests.experience.test_roundtrip import record
from tests.experience.test_threads import Storage, calls, exchange, storage, turn  # noqa: F401 - the fixture
from tests.support import captures

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("read", "write")]
SYSTEM = turn("You are an agent", "system")


def asked(*history: JSON, answer: str = "yes", system: JSON = SYSTEM, tools: Sequence[JSON] = TOOLS, **changes: object) -> Record:
    found = exchange([system, *history], answer, **changes)
    return found._replace(request={**found.request, "tools": list(tools)})


def run(*tasks: str, answer: str = "yes") -> list[Record]:
    """A run whose history grows."""
    history: list[JSON] = []
    found = []
    for task in tasks:
        history = [*history, turn(task)]
        found.append(asked(*history, answer=answer))
        history = [*history, turn(answer, "assistant")]
    return found


def kinds(found: Sequence[Thread]) -> list[tuple[ThreadKind, int]]:
    return [(thread.kind, len(thread.exchanges)) for thread in found]


def told(thread: Thread) -> list[str]:
    """What each exchange adds."""
    return [str(item["content"]) for item in thread.exchanges for item in (*item.new, *item.answer)]


def test_a_history_that_grows_is_one_thread_and_each_turn_is_new_once() -> None:
    (thread,) = threads(run("begin", "go on", "and on"))
    assert thread.kind is ThreadKind.MAIN
    assert told(thread) == ["begin", "yes", "go on", "yes", "and on", "yes"]
    assert [item.rewritten or item.retry_of for item in thread.exchanges] == [None] * 3


def test_a_request_for_a_title_is_a_side_call_also_where_it_comes_first_or_says_the_same() -> None:
    title = asked(turn("begin"), system=turn("Give it a title", "system"), tools=())
    for side in (title, title._replace(request={**title.request, "messages": [turn("Give it a title", "system"), turn("Title, please")]})):
        found = threads([side, *run("begin", "go on")])
        assert kinds(found) == [(ThreadKind.SIDE, 1), (ThreadKind.MAIN, 2)]


def test_a_sub_agent_is_told_from_the_main_thread_also_where_both_begin_with_the_same_rules() -> None:
    rules = turn("the rules of this project")
    main = [rules, turn("begin"), calls("agent", "a"), turn("sub-agent says yes", "tool")]
    sub = [rules, turn("look it up"), calls("read", "b"), turn("text", "tool")]
    records = [asked(*main[:2]), asked(*sub[:2]), asked(*sub), asked(*main), asked(*main, turn("yes", "assistant"), turn("more"))]
    assert kinds(threads(records)) == [(ThreadKind.MAIN, 3), (ThreadKind.AGENT, 2)]
    assert main_thread(records[1:3]) is not None, "a part of a session has a main thread as well"


def test_the_same_prompt_again_is_a_retry_of_the_first() -> None:
    first, second = run("begin", "go on")
    failed = first._replace(id=ids.receipt(), end=End.UPSTREAM_ERROR, response=None)
    again = failed._replace(id=ids.receipt())
    (thread,) = threads([failed, again, first, second])
    assert [item.retry_of for item in thread.exchanges] == [None, failed.id, failed.id, None]
    assert thread.tries == 2
    assert told(thread) == ["begin", "yes", "go on", "yes"]


def test_a_history_that_was_shortened_or_begun_anew_stays_the_main_thread() -> None:
    records = run("begin", "go on")
    shortened = asked(turn("summary of what was"), turn("and on"))
    (thread,) = threads([*records, shortened])
    assert [item.rewritten for item in thread.exchanges] == [False, False, True]
    assert told(thread)[-3:] == ["summary of what was", "and on", "yes"]
    back = asked(turn("begin"), turn("yes", "assistant"), turn("another way"))
    (thread,) = threads([*records, back])
    assert told(thread)[-2:] == ["another way", "yes"], "what was before the place it went back to is not told again"


def test_a_last_turn_that_moves_does_not_break_a_thread() -> None:
    moment = turn("<<<now>>>")
    history = [turn("begin"), calls("ls", "call_1"), turn("a", "tool")]
    (thread,) = threads([asked(turn("begin"), moment), asked(*history, moment)])
    assert not thread.exchanges[1].rewritten
    assert [item["role"] for item in thread.exchanges[1].new] == ["tool", "user"]


@pytest.mark.parametrize("name", captures.files())
def test_each_captured_run_is_one_main_thread(name: str) -> None:
    paths = {"/v1/messages": "messages", "/v1/responses": "responses"}
    runs: dict[str, list[Record]] = defaultdict(list)
    for item in captures.read(name):
        if item.method == "POST":
            dialect = paths.get(item.path.partition("?")[0], "chat")
            runs[item.run].append(record(item.body, None)._replace(dialect=dialect))
    for key, records in runs.items():
        found = threads(records)
        assert [thread.kind for thread in found if thread.kind is not ThreadKind.SIDE] == [ThreadKind.MAIN], key
        assert [len(thread.exchanges) for thread in found if thread.kind is ThreadKind.SIDE] == ([1] if key == "oc-run" else [])
        assert not any(exchange.rewritten for thread in found for exchange in thread.exchanges)


histories = st.lists(st.lists(st.sampled_from("abc"), max_size=5), max_size=8)


@given(histories, st.lists(st.booleans(), min_size=8, max_size=8))
def test_every_record_is_in_one_thread_and_no_turn_of_the_main_one_is_lost(found: list[list[str]], tools: list[bool]) -> None:
    records = [
        asked(*(turn(text, "assistant" if place % 2 else "user") for place, text in enumerate(texts)), tools=TOOLS if with_tools else ())
        for texts, with_tools in zip(found, tools, strict=False)
    ]
    split = threads(records)
    places = [exchange.position for thread in split for exchange in thread.exchanges]
    assert sorted(places) == list(range(len(records)))
    assert [thread.kind for thread in split].count(ThreadKind.MAIN) == bool(records)
    for thread in split:
        assert [item.position for item in thread.exchanges] == sorted(item.position for item in thread.exchanges)
        first = thread.exchanges[0]
        assert list(first.new) == [item for item in first.record.request["messages"][1:] if canonical_turn(item)]


def test_a_long_session_is_taken_apart_in_time_that_grows_with_it() -> None:
    """Turns are looked at once, however many prompts they are in."""
    looked: list[JSON] = []
    records = run(*(f"step {number}" for number in range(60)))
    shared: dict[str, JSON] = {}
    for item in records:
        item.request["messages"] = [shared.setdefault(json.dumps(message), message) for message in item.request["messages"]]
    original = sessions.canonical_turn

    def counted(message: JSON) -> JSON:
        looked.append(message)
        return original(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "canonical_turn", counted)
        threads(records)
    assert len(looked) < 6 * len(records)


CHAT = [turn("hi"), {**calls("write", "1"), "reasoning_content": "hm"}, turn("done", "tool")]
MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "1", "name": "write", "input": {}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "done"}]}]},
]
RESPONSES = [
    "hi",
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "1", "name": "write", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "done"},
]


@pytest.mark.parametrize("turns", [CHAT, MESSAGES, RESPONSES])
def test_turns_say_the_same_in_every_dialect(turns: list[JSON]) -> None:
    said = [part for item in turns for part in telling.parts(item)]
    wanted = [Part(Kind.USER, "hi"), Part(Kind.REASONING, "hm"), Part(Kind.CALL, "{}", "write"), Part(Kind.RESULT, "done")]
    assert said == wanted


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "type", "content", "tool_calls", "function", "text", "name", "input"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_turns_of_any_shape_are_told_somehow(value: JSON) -> None:
    assert all(isinstance(part.text, str) and isinstance(part.name, str) for part in telling.parts(value))
    threads([record({"messages": [value, value], "tools": value}, {"choices": [{"message": value}]})])


def report(storage: Storage, **changes: object) -> None:  # noqa: F811
    with storage.engine.begin() as tx:
        insert(tx, ReportDraft(scenario="s", **changes))  # type: ignore[arg-type]


def test_sessions_are_listed_newest_first_with_what_they_were(storage: Storage) -> None:  # noqa: F811
    first, second = run("begin", "go on")
    failed = first._replace(id=ids.receipt(), end=End.TRUNCATED)
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    storage.add(*(item._replace(session="one", usage=usage) for item in (first, failed)))
    storage.add(second._replace(session="two", release=3), exchange([turn("x")])._replace(scenario="other", session="one"))
    report(storage, session="one", score=0.0)
    report(storage, references=(first.id,), score=1.0)
    report(storage, references=(second.id,), feedback="no score")
    page = storage.store.sessions("s")
    two, one = page.sessions
    assert (page.before, two.id, one.id) == (None, "two", "one")
    assert (one.records, one.whole, one.prompt_tokens, one.completion_tokens) == (2, True, 10, 4)
    assert (one.ends, one.reports, one.score) == ({"complete": 1, "truncated": 1}, 2, 1.0)
    assert (two.release, two.reports, two.score, two.adapter) == (3, 1, None, None)
    assert one.first_at <= one.last_at
    assert storage.store.session("s", "one") == one
    assert [item.score for item in storage.store.session_reports("s", "one")] == [0.0, 1.0]
    with pytest.raises(NotFound):
        storage.store.session("s", "three")


@pytest.mark.parametrize("window", [3, 10_000])
def test_pages_name_every_session_once_whatever_the_bound(
    storage: Storage,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    window: int,
) -> None:
    monkeypatch.setattr("reef.experience.session_list.WINDOW", window)
    monkeypatch.setattr("reef.experience.session_list.SCANNED", window)
    names = ["a", "b", "a", "c", "c", "c", "c", "b", "d", "a", "c"]
    storage.add(*(exchange([turn(ids.receipt())], session=name) for name in names))
    found, before = [], None
    for _ in range(20):
        page = storage.store.sessions("s", limit=2, before=before)
        found += page.sessions
        before = page.before
        if before is None:
            break
    assert [item.id for item in found] == ["c", "a", "d", "b"]
    assert [item.whole for item in found] == [names.count(item.id) == item.records for item in found]


def test_a_session_is_read_in_parts(storage: Storage) -> None:  # noqa: F811
    records = [item._replace(session="one") for item in run("a", "b", "c", "d")]
    storage.add(*records)
    before, part = storage.store.session_part("s", "one", after=records[1].id, limit=1, overlap=1)
    assert [[item.id for item in before], [item.id for item in part]] == [[records[1].id], [records[2].id]]
    before, part = storage.store.session_part("s", "one", limit=10)
    assert [len(before), len(part)] == [0, 4]
    assert jsontext.dumps([item.request for item in part]) == jsontext.dumps([item.request for item in records])
