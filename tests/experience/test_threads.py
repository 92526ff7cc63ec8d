"""What a session costs, where it is found again, and which session a request without one belongs to."""

from __future__ import annotations

import itertools
import json
import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reef.experience import database, delta, ids, threads, traces
from reef.experience.committer import Committer
from reef.experience.known import Known
from reef.experience.rows import Dismantler
from reef.experience.store import ExperienceStore
from reef.types import JSON, End, Record, TokenTrace
from tests.experience.test_roundtrip import record


def turn(text: str, role: str = "user") -> JSON:
    return {"role": role, "content": text}


def exchange(history: Sequence[JSON], answer: str = "yes", **changes: object) -> Record:
    message = {"role": "assistant", "content": answer, "refusal": None}
    response = {"id": "r", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return record({"model": "m", "messages": list(history)}, response)._replace(**changes)  # type: ignore[arg-type]


class Storage:
    """A database, and processes that store in it one after the other."""

    def __init__(self, url: str) -> None:
        self.engine = database.connect(url)
        database.create_tables(self.engine)
        self.store = ExperienceStore(self.engine)
        self.restart()

    def restart(self) -> None:
        self.committer = Committer(self.engine)

    def add(self, *records: Record) -> None:
        assert self.committer.commit(records) == [""] * len(records)
        for item in records:
            found = self.store.record(item.id)
            assert json.dumps([found.request, found.response]) == json.dumps([item.request, item.response])

    def session(self, item: Record) -> str:
        self.add(item)
        found = self.store.record(item.id).session
        assert found
        return found


@pytest.fixture
def storage(database_url: str) -> Storage:
    return Storage(database_url)


names = st.lists(st.sampled_from([bytes([letter]) for letter in range(6)]), max_size=12)


@given(names, names)
def test_copies_and_what_is_left_make_the_prompt_again(prompt: list[bytes], base: list[bytes]) -> None:
    copies = delta.copies(prompt, base)
    copied = {place for at, _, count in copies for place in range(at, at + count)}
    added = [name for place, name in enumerate(prompt) if place not in copied]
    assert delta.put_together(copies, added, base) == prompt
    assert not set(added) & set(base)
    assert added == [prompt[place] for place in delta.added(copies, len(prompt))]
    assert delta.alike(prompt, base) == sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompt, base, strict=False))
    )


@given(names, st.lists(names, min_size=1, max_size=4))
def test_the_nearest_thread_gives_all_that_it_has_of_a_prompt(prompt: list[bytes], histories: list[list[bytes]]) -> None:
    session = threads.Session([threads.Thread(str(number), depth=0, names=history) for number, history in enumerate(histories)])
    nearest = session.nearest(prompt)
    if nearest is None:
        assert not any(set(prompt) & set(history) for history in histories)
        return
    base = nearest.thread.names
    assert nearest.begun == delta.alike(prompt, base)
    added = [prompt[place] for place in delta.added(nearest.copies, len(prompt))]
    assert delta.put_together(nearest.copies, added, base) == prompt
    assert not set(added) & set(base)


edits = st.lists(st.tuples(st.sampled_from(["grow", "answer", "drop", "rewrite", "fork", "fresh"]), st.integers(0, 9)), max_size=12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits, st.booleans())
def test_however_a_history_changes_each_request_is_given_back(tmp_path: Path, edits: list[tuple[str, int]], named: bool) -> None:
    storage = Storage(f"sqlite:///{tmp_path / ids.receipt()}.db")
    history: list[JSON] = [turn("be brief", "system"), turn("begin")]
    for number, (edit, place) in enumerate(edits):
        match edit:
            case "grow":
                history.append(turn(f"step {number}"))
            case "answer":
                history += [turn("yes", "assistant"), turn(f"tool {number}", "tool")]
            case "drop":
                del history[1 : 2 + place]
            case "rewrite" if history:
                history[place % len(history)] = turn(f"rewritten {place}")
            case "fork":
                history = history[: 1 + place]
            case _:
                history = [turn(f"fresh {place}")]
        storage.add(exchange(history, session="run" if named else None))
        if place == 9:
            storage.restart()


def grown(turns: int) -> list[Record]:
    history: list[JSON] = [turn("be brief " * 50, "system")]
    records = []
    for number in range(turns):
        history = [*history, turn(f"step {number} " + ids.receipt() * 20)]
        records.append(exchange(history, f"done {number}", session="run"))
        history = [*history, turn(f"done {number}", "assistant")]
    return records


def cost(folder: Path) -> list[int]:
    with sqlite3.connect(folder / "reef.db") as tx:
        return [size for (size,) in tx.execute("SELECT length(delta) FROM records ORDER BY seq")]


def test_a_restarted_process_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    storage = Storage(f"sqlite:///{tmp_path / 'reef.db'}")
    for item in grown(30):
        storage.restart()
        storage.add(item)
    sizes = cost(tmp_path)
    assert max(sizes[1:]) < 2 * min(sizes[1:])


def test_a_long_session_is_stored_whole_again_now_and_then_and_stays_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reef.experience.rows.MAX_DEPTH", 8)
    storage = Storage(f"sqlite:///{tmp_path / 'reef.db'}")
    storage.add(*grown(30))
    with sqlite3.connect(tmp_path / "reef.db") as tx:
        assert [depth for (depth,) in tx.execute("SELECT depth FROM records ORDER BY seq")] == [number % 9 for number in range(30)]


def test_a_session_with_many_threads_keeps_a_bound_on_what_is_remembered(storage: Storage) -> None:
    many = [exchange([turn(f"side call {number}")], session="run") for number in range(3 * threads.MAX_THREADS)]
    storage.add(*many)
    storage.add(*(exchange([*item.request["messages"], turn("yes", "assistant"), turn("more")], session="run") for item in many))


def test_a_batch_that_fails_is_not_taken_for_stored(storage: Storage) -> None:
    first, second, *_ = grown(2)
    bad = first._replace(scenario="s\0" if storage.engine.dialect.name == "postgresql" else None)  # type: ignore[arg-type]
    problems = storage.committer.commit([first, bad])
    assert problems[0] == ""
    assert problems[1]
    storage.add(second)


def test_a_client_that_names_no_session_is_known_by_its_history(storage: Storage) -> None:
    one, other = exchange([turn("begin")]), exchange([turn("something else")])
    session = storage.session(one)
    assert storage.session(other) != session
    resent = {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}
    history = [turn("begin"), resent, turn("go on")]
    assert storage.session(exchange(history)) == session
    storage.restart()
    assert storage.session(exchange([*history, turn("yes", "assistant"), turn("and on")])) == session


def test_the_same_task_begun_again_is_another_session(storage: Storage) -> None:
    runs = []
    for _ in range(2):
        first = storage.session(exchange([turn("begin")]))
        assert storage.session(exchange([turn("begin"), turn("yes", "assistant"), turn("go on")])) == first
        runs.append(first)
        storage.restart()
    assert runs[0] != runs[1]


def test_a_failed_request_sent_again_is_the_same_session(storage: Storage) -> None:
    failed = exchange([turn("begin")])._replace(end=End.UPSTREAM_ERROR, response=None)
    session = storage.session(failed)
    assert storage.session(failed._replace(id=ids.receipt(), started_at=failed.started_at + 5)) == session
    assert storage.session(failed._replace(id=ids.receipt(), started_at=failed.started_at + 5000)) != session


def test_scenarios_do_not_share_sessions(storage: Storage) -> None:
    history = [turn("begin"), turn("yes", "assistant"), turn("go on")]
    assert storage.session(exchange(history[:1], scenario="a")) != storage.session(exchange(history, scenario="b"))


def test_two_processes_that_store_one_session_in_turns_do_not_store_it_twice(tmp_path: Path) -> None:
    storage = Storage(f"sqlite:///{tmp_path / 'reef.db'}")
    both = itertools.cycle([Committer(storage.engine), Committer(storage.engine)])
    for item in grown(40):
        storage.committer = next(both)
        storage.add(item)
    sizes = cost(tmp_path)
    assert sum(sizes[20:]) < 4 * sum(sizes[:20])


def test_reading_a_session_is_linear(tmp_path: Path) -> None:
    storage = Storage(f"sqlite:///{tmp_path / 'reef.db'}")
    records = grown(60)
    storage.add(*records)
    assert [item.request for item in storage.store.session_records("s", "run")] == [item.request for item in records]


def test_tokens_are_given_back_and_a_prompt_costs_only_its_new_ones(tmp_path: Path) -> None:
    storage = Storage(f"sqlite:///{tmp_path / 'reef.db'}")
    seen: tuple[int, ...] = ()
    sent = []
    for number, item in enumerate(grown(20)):
        prompt = (*seen, *range(number * 1000, number * 1000 + 50))
        seen = (*prompt, *range(7))
        sent.append(item._replace(tokens=TokenTrace(prompt, tuple(range(7)), (-0.5, -0.25, 0.0, -1.5, -2.0, -4.0, -8.0))))
        storage.add(sent[-1])
        if number % 5 == 4:
            storage.restart()
    assert [item.tokens for item in storage.store.session_records("s", "run")] == [item.tokens for item in sent]
    with sqlite3.connect(tmp_path / "reef.db") as tx:
        sizes = [size for (size,) in tx.execute("SELECT length(tokens) FROM records ORDER BY seq")]
    assert max(sizes[1:]) < 1.2 * min(sizes[1:])


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 2**32 - 1)), st.lists(st.integers(0, 9)))
def test_any_trace_is_given_back_over_any_base(prompt: list[int], completion: list[int], below: list[int]) -> None:
    trace = TokenTrace(tuple(prompt), tuple(completion), tuple(0.5 for _ in completion))
    for base in (None, TokenTrace(tuple(below), (), ()), TokenTrace((), tuple(below), ())):
        assert traces.unpack(traces.pack(trace, base), base) == trace
        swapped = replace(trace, served=("a.1", "ü.2"), starts=(0, 7))
        assert traces.unpack(traces.pack(swapped, base), base) == swapped


def test_a_trace_that_was_stored_before_there_were_names_is_read_as_it_was() -> None:
    numbers = struct.pack("<III", 2, 1, 2) + struct.pack("<III", 9, 7, 8) + struct.pack("<ff", -0.5, -1.25)
    base = TokenTrace((1,), (2, 3), ())
    trace = TokenTrace((1, 2, 9), (7, 8), (-0.5, -1.25))
    assert traces.unpack(zstandard.compress(numbers), base) == trace
    assert zstandard.decompress(traces.pack(trace, base)) == numbers


def calls(name: str, identity: str) -> JSON:
    """An assistant's turn that calls a tool."""
    call = {"id": identity, "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def calling(history: Sequence[JSON], identity: str) -> Record:
    answered = exchange(history)
    answered.response["choices"][0]["message"] = calls("ls", identity)
    return answered


def test_a_last_turn_that_is_taken_away_again_does_not_hide_the_run(storage: Storage) -> None:
    """As OpenClaw does it, which writes the ids of calls anew besides."""
    moment = turn("<<<what is true just now>>>")
    runs = [storage.session(calling([turn("begin"), moment], f"call_{run}")) for run in "ab"]
    assert runs[0] != runs[1]
    for run, session in zip("ab", runs, strict=True):
        history = [turn("begin"), calls("ls", f"call{run}"), turn(run, "tool")]
        assert storage.session(exchange([*history, moment])) == session
        storage.restart()
        assert storage.session(exchange([*history, turn("yes", "assistant"), turn("go on"), moment])) == session


def test_runs_that_begin_with_the_same_rules_are_not_one(storage: Storage) -> None:
    histories = [[turn("the rules of this project"), turn(f"task {number}")] for number in range(3)]
    sessions = [storage.session(exchange(history)) for history in histories]
    assert len(set(sessions)) == 3
    storage.restart()
    for history, session in zip(histories, sessions, strict=True):
        assert storage.session(exchange([*history, turn("yes", "assistant"), turn("go on")])) == session


def test_a_failed_request_sent_again_after_a_restart_is_the_same_session(storage: Storage) -> None:
    failed = exchange([turn("rules"), turn("begin")])._replace(end=End.TRUNCATED)
    session = storage.session(failed)
    storage.restart()
    assert storage.session(failed._replace(id=ids.receipt(), started_at=failed.started_at + 5)) == session


@given(st.lists(st.tuples(st.sampled_from(["add", "get"]), st.integers(0, 40)), max_size=200), st.integers(4, 16))
def test_what_is_remembered_is_bounded_and_the_newest_of_it_is_there(steps: list[tuple[str, int]], size: int) -> None:
    known: Known[int] = Known(size=size)
    used: list[int] = []
    for what, number in steps:
        key = b"%d" % number
        if what == "add":
            known.discard(key)
            known.add(key, number)
        elif known.get(key) is None:
            assert key not in used[-(size // 4) :]
            continue
        used = [other for other in used if other != key] + [key]
        assert len(known) <= size
        assert all(known.get(other) is not None for other in used[-(size // 4) :])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 8)), max_size=60))
def test_sessions_are_remembered_up_to_their_bound_and_the_one_in_use_whatever_its_size(steps: list[tuple[int, int]]) -> None:
    sessions = threads.Sessions(turns=20)
    remembered: dict[str, threads.Session] = {}
    for number, (name, turns) in enumerate(steps):
        session = sessions.get("default", str(name))
        assert (session is None) == (str(name) not in remembered)
        session = remembered[str(name)] = session or sessions.new("default", str(name))
        turns_of = [b"%d-%d" % (number, place) for place in range(turns)]
        session.add(threads.Thread(str(number), depth=0, names=turns_of), after=None)
        forgotten = sessions.grew(session)
        remembered = {key: value for key, value in remembered.items() if all(value is not other for other in forgotten)}
        assert str(name) in remembered
        assert sum(session.turns for session in remembered.values()) <= 20 or len(remembered) == 1


def test_a_history_written_anew_for_each_request_leaves_nothing_behind() -> None:
    session = threads.Session()
    last = None
    for number in range(1000):
        thread = threads.Thread(str(number), depth=0, names=[b"rules", *(b"%d-%d" % (number, place) for place in range(9))])
        session.add(thread, after=last)
        last = thread
    assert session.turns == 11
    assert len(session._names) <= 2 * session.turns + threads.FEW


def test_what_turns_mean_is_forgotten_with_their_session() -> None:
    dismantler = Dismantler(lambda _scenario, _session: [], lambda _opening: [], remember=100)
    for number in range(200):
        history = [turn(f"{number}, {place}") for place in range(3)]
        first = exchange(history, answer=f"yes, {number}")
        second = exchange([*history, turn(f"yes, {number}", "assistant"), turn("go on")], answer=f"no, {number}")  # a client's own words
        dismantler.rows([first])
        dismantler.rows([second])
    remembered = dismantler._sessions._sessions.values()
    meanings = dismantler._structure._meanings
    assert sum(session.turns for session in remembered) <= 100
    assert {name for part in (meanings._young, *meanings._older) for name in part} <= {name for one in remembered for name in one.names}
