"""What real coding agents sent is accepted, recorded, given back as the same JSON, and stored once."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.experience import dialects as shapes
from reef.experience.turns import canonical_turn
from reef.types import End, Record
from tests.support import captures, dialects
from tests.support.gateway import Service, service
from tests.support.upstream import FakeUpstream, upstream

PASSED_ON = ("x-reef-scenario", "anthropic-version", "anthropic-beta")
NOT_SENT = ("x-reef-session", "content-length", "transfer-encoding", "connection", "host", "accept-encoding", "authorization", "x-api-key")
"""What our own configuration of the agent added, and what a connection of the test's own says anew."""
MOVING = frozenset({"openclaw.jsonl"})
"""Runs whose histories are no prefix of each other: OpenClaw puts a user message at the end of every request and takes it away again."""

SAID = ("text", "output", "arguments")
ANONYMOUS = re.compile(r"^<(.*)>$")
"""How the captures write what named somebody: a session's id in angle brackets, which no id has."""


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream(dialects.answer) as server:
        yield server


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    with service(tmp_path, upstream=fake.url, upstream_section={"dialects": ["chat", "responses", "messages"]}) as running:
        yield running


def replay(gateway: Service, name: str) -> dict[str, list[Record]]:
    """Send a capture's requests; the records of its runs."""
    runs: dict[str, list[Record]] = defaultdict(list)
    for item in captures.read(name):
        headers = {header: item.headers[header] for header in PASSED_ON if header in item.headers}
        answer = gateway.request(item.method, item.path, item.body, {**headers, "x-reef-session": item.run})
        assert answer.status == 200
        if item.method == "HEAD":
            continue
        record = gateway.record(answer)
        assert json.dumps(record.request) == json.dumps(item.body)
        assert record.end is End.COMPLETE
        shown = gateway.request("GET", f"/reef/records/{record.id}").raw
        assert json.dumps(json.loads(shown)["request"]) == json.dumps(item.body)
        runs[item.run].append(record)
    return runs


@pytest.mark.parametrize("name", captures.files())
def test_each_run_is_one_session_by_what_its_agent_really_sent(gateway: Service, name: str) -> None:
    """Without `x-reef-session`: by the agent's own headers where it has any (Claude Code, Codex, OpenCode with its title request, Pi on
    responses), else by the history (aider, Hermes, mini-swe-agent, OpenClaw, Qwen, Pi on chat and messages). No capture has a request that
    neither tells: the one run with a history that is no continuation, OpenCode's, carries its session's header on every request."""
    sessions: dict[str, set[str | None]] = defaultdict(set)
    for item in captures.read(name):
        headers = {header: ANONYMOUS.sub(r"\1", value) for header, value in item.headers.items() if header not in NOT_SENT}
        answer = gateway.request(item.method, item.path, item.body, headers)
        assert answer.status == 200
        if item.method != "HEAD":
            sessions[item.run].add(gateway.record(answer).session)
    assert {run: len(found) for run, found in sessions.items()} == dict.fromkeys(sessions, 1)
    assert len(set.union(*sessions.values()) if sessions else ()) == len(sessions), "runs share no session"


def turns(record: Record) -> list[object]:
    taken = shapes.named(record.dialect).take_prompt(record.request)
    assert taken is not None
    return [meaning for turn in taken[0] if (meaning := canonical_turn(turn)) is not None]


@pytest.mark.parametrize("name", captures.files())
def test_a_capture_is_accepted_recorded_and_given_back(gateway: Service, name: str) -> None:
    runs = replay(gateway, name)
    assert runs or name.startswith("gemini")
    for run, records in runs.items():
        assert len(gateway.store.session_records("scn-demo", run) + gateway.store.session_records("default", run)) == len(records)


@pytest.mark.parametrize("name", [name for name in captures.files() if name not in MOVING])
def test_a_later_request_of_a_run_means_what_the_earlier_one_did_and_more(gateway: Service, name: str) -> None:
    for records in replay(gateway, name).values():
        tools = [record for record in records if record.request.get("tools")]  # opencode asks for a title first, without any
        for earlier, later in itertools.pairwise(tools):
            assert turns(later)[: len(turns(earlier))] == turns(earlier)


@pytest.mark.parametrize("name", ["claude-code-2.1.332.jsonl", "pi-1.6.0-anthropic.jsonl", "pi-1.6.0-responses.jsonl", "codex.jsonl"])
def test_what_a_turn_costs_stays_flat_as_a_session_grows(gateway: Service, tmp_path: Path, name: str) -> None:
    """A captured run carried on for 40 turns as its agent would: the whole history every time, the marker on the newest turn."""
    first, second = [item for item in captures.read(name) if item.method == "POST"][:2]
    key = "input" if "input" in first.body else "messages"
    history = list(second.body[key])
    added = history[len(first.body[key]) :]
    sizes = [stored(tmp_path)]
    raw = 0
    for turn in range(40):
        body = {**second.body, key: history, "stream": False}
        sent = gateway.request("POST", first.path, body, {"x-reef-session": "grown"})
        assert sent.status == 200
        assert gateway.record(sent).request == body
        raw += len(json.dumps(body))
        sizes.append(stored(tmp_path))
        history = [unmarked(item) for item in history] + [numbered(item, turn) for item in added]
    costs = [later - earlier for earlier, later in itertools.pairwise(sizes)]
    assert sum(costs[30:40]) < 1.2 * sum(costs[10:20])
    assert sum(costs) < raw / 10


def stored(folder: Path) -> int:
    """Bytes in the store's rows."""
    with sqlite3.connect(folder / ".reef" / "reef.db") as tx:
        blobs = tx.execute("SELECT coalesce(sum(length(data) + length(digest)), 0) FROM blobs").fetchone()[0]
        deltas = tx.execute("SELECT coalesce(sum(length(delta)), 0) FROM records").fetchone()[0]
    return blobs + deltas


def unmarked(value: object) -> object:
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def numbered(value: object, turn: int) -> object:
    """A turn like ``value`` that was not seen before."""
    if isinstance(value, dict):
        return {key: f"{item} {turn}" if key in SAID and isinstance(item, str) else numbered(item, turn) for key, item in value.items()}
    return [numbered(item, turn) for item in value] if isinstance(value, list) else value
