"""What was sent and answered is given back equal, and stored once."""

import asyncio
import json
import sqlite3
import time
from pathlib import Path

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reef.experience import database, ids, jsontext
from reef.experience.store import ExperienceStore
from reef.experience.turns import canonical_message, canonical_turn
from reef.experience.writer import Writer
from reef.types import JSON, End, Origin, Record

text = st.text(max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8)
messages = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": values}) | values
requests = st.dictionaries(text, values, max_size=3).flatmap(
    lambda extra: st.permutations([*extra.items(), ("model", "m"), ("messages", None)]).flatmap(
        lambda items: (st.lists(messages, max_size=5) | values).map(lambda found: {**dict(items), "messages": found})
    )
)
responses = (
    st.none()
    | values
    | st.lists(st.fixed_dictionaries({"index": st.integers(0, 3), "message": values, "x": values}), max_size=2).map(
        lambda choices: {"id": "r", "choices": choices, "usage": {"prompt_tokens": 3}}
    )
)


def record(request: JSON, response: JSON, *, scenario: str = "s", session: str | None = None) -> Record:
    return Record(
        id=ids.receipt(),
        scenario=scenario,
        session=session,
        release=1,
        origin=Origin.USER,
        dialect="chat",
        upstream="http://u/v1",
        model="m",
        end=End.COMPLETE,
        status=200,
        streamed=False,
        request=request,
        response=response,
        usage={},
        started_at=time.time(),
        first_byte_ms=1.0,
        duration_ms=2.0,
    )


def stored(folder: Path, *records: Record) -> tuple[ExperienceStore, Path]:
    file = folder / f"{ids.receipt()}.db"
    engine = database.connect(f"sqlite:///{file}")
    database.create_tables(engine)
    writer = Writer(engine)
    writer.start()

    async def send() -> None:
        for item in records:
            await writer.record(item)
        await writer.aclose()

    asyncio.run(send())
    return ExperienceStore(engine), file


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests, responses)
def test_any_request_and_response_are_given_back_equal_with_their_keys_in_order(tmp_path: Path, request: JSON, response: JSON) -> None:
    sent = record(request, response)
    store, _ = stored(tmp_path, sent, record(request, response))
    found = store.record(sent.id)
    assert json.dumps(found.request) == json.dumps(request)
    assert json.dumps(found.response) == json.dumps(response)


@given(values)
def test_json_text_comes_back_equal(value: JSON) -> None:
    assert json.dumps(jsontext.loads(jsontext.dumps(value))) == json.dumps(value)


def test_a_lone_surrogate_survives(tmp_path: Path) -> None:
    sent = jsontext.loads(rb'{"messages":[{"role":"user","content":"cut \ud83d"}],"user":"\ud83d"}')
    item = record(sent, None)
    store, _ = stored(tmp_path, item)
    assert store.record(item.id).request == sent


def session_of(turns: int) -> list[Record]:
    """An agent that sends its whole history with every request."""
    tools = [{"type": "function", "function": {"name": f"tool{n}", "description": "x" * 200}} for n in range(10)]
    history: list[JSON] = [{"role": "system", "content": "You are an agent. " * 50}]
    records = []
    for turn in range(turns):
        history.append({"role": "user", "content": f"step {turn}: " + ids.receipt() * 20})
        answer = {"role": "assistant", "content": f"done {turn} " + ids.receipt() * 10, "refusal": None}
        response = {"id": f"r{turn}", "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]}
        records.append(record({"model": "m", "messages": list(history), "tools": tools}, response, session="run"))
        history.append({"role": "assistant", "content": answer["content"]})
    return records


def test_a_session_of_n_turns_costs_bytes_in_proportion_to_n(tmp_path: Path) -> None:
    sizes = {}
    for turns in (40, 80):
        records = session_of(turns)
        store, file = stored(tmp_path, *records)
        with sqlite3.connect(file) as tx:
            blobs, deltas = "SELECT sum(length(data)) FROM blobs", "SELECT sum(length(delta)) FROM records"
            sizes[turns] = sum(tx.execute(query).fetchone()[0] for query in (blobs, deltas))
        found = store.session_records("s", "run")
        assert [item.request for item in found] == [item.request for item in records]
        assert orjson.dumps([item.response for item in found]) == orjson.dumps([item.response for item in records])
        raw = sum(len(orjson.dumps(item.request)) for item in records)
        assert sizes[turns] < raw / 5
    assert sizes[80] < 2.1 * sizes[40]


def test_an_answer_and_its_resent_form_mean_the_same() -> None:
    answered = {"role": "assistant", "content": "yes", "refusal": None, "annotations": [], "reasoning_content": ""}
    resent = {"content": [{"type": "text", "text": "yes", "cache_control": {"type": "ephemeral"}}], "role": "assistant"}
    assert canonical_turn(answered) == canonical_turn(resent)


def test_canonical_messages_keep_what_counts() -> None:
    two_blocks = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert canonical_message(two_blocks) == two_blocks
    image = {"content": [{"type": "image_url", "image_url": {"url": "u"}}]}
    assert canonical_message(image) == image
    cited = {"content": [{"type": "text", "text": "a", "citations": [1]}]}
    assert canonical_message(cited) == cited
