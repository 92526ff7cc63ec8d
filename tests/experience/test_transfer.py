"""What an export gives, an import takes, and another export then gives again: the same lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reef.errors import Conflict, InvalidLine, NotFound
from reef.experience import database, export, ids, jsontext, lines
from reef.experience.committer import InThread
from reef.experience.lines import RecordLine
from reef.experience.reports import ReportDraft
from reef.experience.store import ExperienceStore
from reef.experience.transfer import Importer, Tally
from reef.experience.writer import Writer
from reef.types import JSON, End, Origin, Record
from tests.experience.test_databases import exchange, writing

SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123"


@pytest.fixture
def engine(database_url: str) -> sa.Engine:
    return opened(database_url)


def opened(url: str) -> sa.Engine:
    engine = database.connect(url)
    database.create_tables(engine)
    return engine


def elsewhere(folder: Path) -> sa.Engine:
    return opened(f"sqlite:///{folder / ids.receipt()}.db")


def take(engine: sa.Engine, text: bytes | Sequence[JSON], *, redact: bool = True, scenario: str = "default") -> Tally:
    if not isinstance(text, bytes):
        text = b"\n".join(jsontext.dumps(line) for line in text)
    batch = lines.read(text, first=1, scenario=scenario, in_lines=True, most=1000)

    async def run() -> Tally:
        writer = Writer(engine, storing=InThread(engine, redact=redact))
        writer.start()
        try:
            return await Importer(engine, writer, redact=redact).take(batch)
        finally:
            await writer.aclose()

    return asyncio.run(run())


def given_out(engine: sa.Engine, **only: str) -> bytes:
    return b"".join(export.export(engine, **only))


def pair(text: str = "hi", **more: JSON) -> dict[str, JSON]:
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": f"re: {text}"}}], "usage": {"prompt_tokens": 3}}
    return {"request": {"model": "m", "messages": [{"role": "user", "content": text}]}, "response": answer, **more}


def some_experience(engine: sa.Engine) -> None:
    sent = [exchange(turns) for turns in (1, 3, 5)]

    async def work(writer: Writer) -> None:
        for record in sent:
            await writer.record(record)
        await writer.record(RecordLine(id="other", request={"messages": []}, response=None, session="s2").record("second"))
        await writer.session("default", "run", adapter="pi", release=2)
        receipts = (sent[2].id, sent[0].id)
        await writer.report(ReportDraft(scenario="default", id="one", references=receipts, score=1, feedback={"b": [None], "a": "é\0"}))
        await writer.report(ReportDraft(scenario="default", session="run", feedback="too slow", metadata={"z": 1, "y": {"x": 0.1}}))
        await writer.report(ReportDraft(scenario="second", references=("other",), score=0.25))

    writing(engine, work)


def test_export_import_export_gives_the_same_lines(engine: sa.Engine, tmp_path: Path) -> None:
    some_experience(engine)
    first = given_out(engine)
    assert [json.loads(line)["kind"] for line in first.splitlines()] == ["session", *["record"] * 3, *["report"] * 2, "record", "report"]
    second = elsewhere(tmp_path)
    assert take(second, first).stored == {"sessions": 1, "records": 4, "reports": 3}
    assert given_out(second) == first
    again = take(second, first)
    assert (sum(again.stored.values()), again.there) == (0, {"sessions": 1, "records": 4, "reports": 3})
    assert given_out(second) == first


def test_into_the_database_it_came_from_nothing_is_added(engine: sa.Engine) -> None:
    some_experience(engine)
    first = given_out(engine)
    assert sum(take(engine, first).stored.values()) == 0
    assert given_out(engine) == first


def test_an_import_by_pages_is_whole(engine: sa.Engine, tmp_path: Path) -> None:
    sent = [pair(f"turn {number}", id=f"r{number:03}", session="run") for number in range(2 * export.PAGE + 3)]
    take(engine, sent)
    first = given_out(engine)
    assert [json.loads(line)["id"] for line in first.splitlines()] == [line["id"] for line in sent]
    second = elsewhere(tmp_path)
    take(second, first)
    assert given_out(second) == first


def test_one_session_goes_out_with_what_is_about_it_alone(engine: sa.Engine) -> None:
    take(engine, [pair("a", id="a", session="one"), pair("b", id="b", session="two"), {"kind": "session", "id": "one", "adapter": "pi"}])
    reports = [("mine", ["a"]), ("both", ["a", "b"]), ("theirs", ["b"])]
    take(engine, [{"kind": "report", "id": name, "references": quoted, "score": 1} for name, quoted in reports])
    found = [json.loads(line) for line in given_out(engine, scenario="default", session="one").splitlines()]
    assert [(line["kind"], line["id"]) for line in found] == [("session", "one"), ("record", "a"), ("report", "mine")]


def test_a_late_report_on_a_session_keeps_the_records_it_quoted(engine: sa.Engine, tmp_path: Path) -> None:
    some_experience(engine)
    take(engine, [pair("later", id="later", session="run")])
    second = elsewhere(tmp_path)
    take(second, given_out(engine))
    (about,) = [report for report in ExperienceStore(second).reports("default") if report.session == "run"]
    assert len(about.references) == 3


def test_the_first_moment_of_1970_is_a_time_like_any_other(engine: sa.Engine) -> None:
    take(engine, [pair(id="a", started_at=0.0), pair("b", id="b"), {"kind": "report", "id": "r", "references": ["b"], "created_at": 0.0}])
    assert ExperienceStore(engine).record("a").started_at == 0.0
    assert ExperienceStore(engine).report("r").created_at == 0.0


def test_what_a_line_says_is_kept(engine: sa.Engine) -> None:
    told = {
        "id": "mine", "session": "s", "release": 4, "origin": "trial", "dialect": "messages", "upstream": "u", "model": "n",
        "end": "truncated", "status": 502, "streamed": True, "started_at": 12.5, "first_byte_ms": 0.25,
        "duration_ms": 7.0, "error": "broke off",
    }  # fmt: skip
    take(engine, [pair(**told)])
    found = ExperienceStore(engine).record("mine")
    assert {name: getattr(found, name) for name in told} == told
    assert found.usage["prompt_tokens"] == 3


def test_a_pair_becomes_a_record_and_its_content_is_its_id(engine: sa.Engine) -> None:
    line = pair()
    line["response"]["created"] = 1_700_000_000
    first = take(engine, [line, pair("other")], scenario="chats")
    found = ExperienceStore(engine).record(first.ids[0])
    assert (found.scenario, found.model, found.end, found.origin, found.dialect) == ("chats", "m", End.COMPLETE, Origin.USER, "chat")
    assert (found.request, found.response, found.started_at) == (line["request"], line["response"], 1_700_000_000.0)
    again = take(engine, [line, pair("other"), pair("new")], scenario="chats")
    assert (again.stored["records"], again.there["records"], again.ids[:2]) == (1, 2, first.ids)


def test_the_same_id_with_other_content_is_refused_by_line_and_nothing_is_stored(engine: sa.Engine) -> None:
    take(
        engine,
        [
            pair("a", id="a"),
            {"kind": "report", "id": "r", "references": ["a"], "score": 1},
            {"kind": "session", "id": "s", "adapter": "pi"},
        ],
    )
    new = pair("b", id="b")
    refused: list[tuple[JSON, str]] = [
        (pair("x", id="a"), "line 2: record a is there with other request"),
        (pair("x", id="b"), "line 2: record b is there with other request"),
        ({"kind": "report", "id": "r", "references": ["a"], "score": 0}, "line 2: report r is there"),
        ({"kind": "session", "id": "s", "adapter": "codex"}, "line 2: session s is there"),
    ]
    for line, said in refused:
        with pytest.raises(Conflict, match=said):
            take(engine, [new, line])
    assert ExperienceStore(engine).counts()["records"] == 1


def test_a_report_must_quote_records_of_its_scenario(engine: sa.Engine) -> None:
    take(engine, [pair("a", id="a", scenario="one")])
    report = {"kind": "report", "references": ["a"], "score": 1}
    with pytest.raises(NotFound, match="line 1: there is no record a in scenario default"):
        take(engine, [report])
    with pytest.raises(NotFound, match="line 2: session s of scenario default has no records"):
        take(engine, [pair("b"), {"kind": "report", "session": "s", "score": 1}])
    assert take(engine, [pair("b", id="b"), {**report, "references": ["b"]}, {**report, "scenario": "one"}]).stored["reports"] == 2
    assert take(engine, [pair("c", session="s"), {"kind": "report", "session": "s", "score": 1}]).stored["reports"] == 1


def test_secrets_are_taken_out_and_the_same_line_is_then_the_same(engine: sa.Engine, tmp_path: Path) -> None:
    sent = [pair(f"the key is {SECRET}", id="a"), {"kind": "report", "id": "r", "references": ["a"], "feedback": f"it told {SECRET}"}]
    take(engine, sent)
    stored = given_out(engine)
    assert SECRET.encode() not in stored
    assert b"[redacted:api-key]" in stored
    assert sum(take(engine, sent).stored.values()) == 0
    second = elsewhere(tmp_path)
    take(second, stored)
    assert sum(take(second, sent).stored.values()) == 0  # whoever still has the original is told that it is there
    kept = elsewhere(tmp_path)
    take(kept, sent, redact=False)
    assert SECRET.encode() in given_out(kept)


ONE_TOKEN = b'{"request": {}, "response": {}, "tokens": {"prompt_ids": [1], "completion_ids": [2], "logprobs": [-1.0], %b}}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2: not JSON"),
        (b"[1]", "line 2: a JSON array, not an object"),
        (b'{"kind": "recrod"}', "line 2: kind: must be record, report or session"),
        (b'{"kind": ["record"]}', "line 2: kind"),
        (b'{"request": {}}', "line 2: response: is missing"),
        (b'{"request": [], "response": null}', "line 2: request: "),
        (b'{"request": {}, "response": {}, "reqeust": 1}', "line 2: reqeust: unknown field"),
        (b'{"request": {}, "response": {}, "started_at": "now"}', "line 2: started_at: "),
        (b'{"request": {}, "response": {}, "end": "finished"}', "line 2: end: "),
        (b'{"request": {}, "response": {}, "status": true}', "line 2: status: "),
        (b'{"request": {}, "response": {}, "usage": {"prompt_tokens": -1}}', "line 2: usage.prompt_tokens: "),
        (b'{"request": {}, "response": {}, "id": "a b"}', "line 2: id: "),
        (b'{"request": {}, "response": {}, "session": "../x"}', "line 2: session: "),
        (b'{"request": {}, "response": {}, "error": "\\u0000"}', "line 2: error: "),
        (b'{"request": {}, "response": {}, "error": "\\ud83d"}', "line 2: error: "),
        (ONE_TOKEN % b'"served": ["a.1"]', "line 2: tokens: "),
        (ONE_TOKEN % b'"served": ["a.1"], "starts": [1]', "line 2: tokens: "),
        (ONE_TOKEN % b'"served": ["a.1", "a.2"], "starts": [0, 1]', "line 2: tokens: "),
        (b'{"kind": "report", "references": ["a"], "score": "high"}', "line 2: score: "),
        (b'{"kind": "session", "id": "s"}', "line 2: adapter: is missing"),
    ],
)
def test_a_bad_line_is_named_with_its_field(line: bytes, said: str) -> None:
    with pytest.raises(InvalidLine) as refusal:
        lines.read(b'{"request": {}, "response": {}}\n' + line, first=1, scenario="default", in_lines=True, most=10)
    assert refusal.value.message.startswith(said), refusal.value.message


def test_lines_are_counted_from_where_they_begin_and_empty_ones_count() -> None:
    with pytest.raises(InvalidLine, match="line 103: not JSON"):
        lines.read(b'\n{"request": {}, "response": {}}\r\n  \n{', first=100, scenario="default", in_lines=True, most=10)
    with pytest.raises(InvalidLine, match="line 3: a batch has at most 2"):
        lines.read(b'[{"request": {}, "response": {}}, {"request": {}, "response": {}}, 3]', first=1, scenario="d", in_lines=False, most=2)


def test_a_line_has_every_field_of_a_record() -> None:
    assert set(RecordLine.model_fields) == {"kind", *Record._fields}


text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
names = st.from_regex(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,20}", fullmatch=True)
bodies = st.dictionaries(text, values, max_size=3).flatmap(
    lambda body: st.lists(values, max_size=4).map(lambda found: {**body, "messages": found})
)
record_lines = st.fixed_dictionaries(
    {"request": bodies, "response": st.none() | values},
    optional={
        "id": names, "scenario": names, "session": names, "release": st.integers(1, 2**31 - 1), "origin": st.sampled_from(list(Origin)),
        "dialect": st.sampled_from(["chat", "responses", "messages"]), "end": st.sampled_from(list(End)), "upstream": text, "model": text,
        "status": st.integers(0, 999), "streamed": st.booleans(), "started_at": st.floats(0, 2e9), "error": text,
        "first_byte_ms": st.none() | st.floats(0, 1e9), "duration_ms": st.floats(0, 1e9),
        "tokens": st.none() | st.lists(st.integers(0, 2**32 - 1)).map(
            lambda ids: {"prompt_ids": ids, "completion_ids": [1], "logprobs": [-0.125]}
        ) | st.lists(text, min_size=1, max_size=3).map(
            lambda names: {
                "prompt_ids": [1], "completion_ids": [2, 3, 4], "logprobs": [-0.5, -0.125, 0.0],
                "served": names, "starts": list(range(len(names))),
            }
        ),
    },
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(record_lines, max_size=5, unique_by=lambda line: line.get("id", id(line))))
def test_any_records_come_out_as_they_went_in_twice_over(tmp_path: Path, sent: list[JSON]) -> None:
    one, two = elsewhere(tmp_path), elsewhere(tmp_path)
    take(one, sent, redact=False)
    first = given_out(one)
    found = {line["id"]: line for line in map(jsontext.loads, first.splitlines())}
    for line in sent:
        if "id" in line:
            kept = found[line["id"]]
            assert {name: json.dumps(kept[name]) for name in line} == {name: json.dumps(line[name]) for name in line}
    take(two, first, redact=False)
    assert given_out(two) == first
    assert sum(take(one, sent, redact=False).stored.values()) == 0
