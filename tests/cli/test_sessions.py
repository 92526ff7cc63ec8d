"""`reef sessions` against a running gateway, in every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import reef
from tests.support import dialects
from tests.support.gateway import Service, service
from tests.support.upstream import FakeUpstream, Reply, Seen, upstream, whole

LONG = "x" * 5000
CALL = {"id": "1", "type": "function", "function": {"name": "write", "arguments": '{"path": "hello.txt"}'}}
CHAT = [
    {"role": "system", "content": f"You are an agent. {LONG}"},
    {"role": "user", "content": "Write hello\nto a file"},
    {"role": "assistant", "content": "I will.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": f"written {LONG}"},
]
MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "Write hello\nto a file"}]},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "I will."}, {"type": "tool_use", "id": "1", "name": "write", "input": {"path": "hello.txt"}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": f"written {LONG}"}]},
]
INPUT = [
    {"role": "user", "content": "Write hello\nto a file"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I will."}]},
    {"type": "function_call", "call_id": "1", "name": "write", "arguments": '{"path": "hello.txt"}'},
    {"type": "function_call_output", "call_id": "1", "output": f"written {LONG}"},
]
RUNS: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "chat": ("/v1/chat/completions", {}, "messages", 2),
    "messages": ("/v1/messages", {"system": f"You are an agent. {LONG}", "max_tokens": 99}, "messages", 1),
    "responses": ("/v1/responses", {"instructions": f"You are an agent. {LONG}"}, "input", 1),
}
"""By dialect: path, what every request of a run has, where the turns stand, and how many of them the first request has."""
TOOLS = [{"type": "function", "name": "write", "function": {"name": "write"}}]


def answer(seen: Seen) -> Reply:
    """What a run is answered; its last prompt is refused at first."""
    if "broken" in json.dumps(seen.body):
        return whole({"error": {"message": "out of order", "type": "server_error"}}, status=500)
    return dialects.answer(seen)


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream(answer) as server:
        yield server


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    with service(tmp_path, upstream=fake.url, upstream_section={"dialects": list(RUNS)}) as running:
        yield running


def work(gateway: Service, dialect: str) -> list[str]:
    """A run with a title request, a call, a retry and a failure; its receipts."""
    path, common, key, first = RUNS[dialect]
    turns: list[Any] = {"chat": CHAT, "messages": MESSAGES, "responses": INPUT}[dialect]
    bodies = [
        {"model": "m", key: [{"role": "user", "content": "Title, please"}], **({"max_tokens": 9} if dialect == "messages" else {})},
        {"model": "m", **common, "tools": TOOLS, key: turns[:first]},
        {"model": "m", **common, "tools": TOOLS, key: turns},
        {"model": "m", **common, "tools": TOOLS, key: [*turns, {"role": "user", "content": "broken"}]},
        {"model": "m", **common, "tools": TOOLS, key: [*turns, {"role": "user", "content": "broken"}]},
    ]
    receipts = [gateway.request("POST", path, body, {"x-reef-session": f"run-{dialect}"}).receipt for body in bodies]
    gateway.request("POST", "/reef/report", {"session": f"run-{dialect}", "score": 0, "feedback": "no date in it"})
    return receipts


@pytest.mark.parametrize("dialect", RUNS)
def test_a_run_is_printed_as_a_conversation(gateway: Service, dialect: str) -> None:
    receipts = work(gateway, dialect)
    done = reef("sessions", "show", f"run-{dialect}", REEF_URL=gateway.url)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    margins = [line[:32].strip() for line in lines]
    assert [margin for margin in margins if margin.startswith("rec_")] == receipts, "whole, each once, in order"
    told = [line[34:] for line in lines]
    assert told[margins.index(receipts[0])].startswith("side call  Title, please → ")
    assert "user       Write hello" in told
    assert told[told.index("user       Write hello") + 1] == "           to a file"
    (system,) = [line for line in told if line.startswith("system")]
    assert "characters left out" in system
    assert len(system) < 500
    (result,) = [line for line in told if line.startswith("result")]
    assert result.startswith("result     written xxx")
    assert f"[… {5008 - 533 - 266} characters left out …]" in result
    assert not any(line.startswith(("assistant  I will.", 'call       write {"path": "hello.txt"}')) for line in told), (
        "answers are told once"
    )
    assert told.count("user       broken") == 1
    assert told[margins.index(receipts[3])] == "ended      upstream_error: the upstream answered 500"
    assert told[margins.index(receipts[4])] == f"retry      of {receipts[3]}"
    assert "score 0, on 5 records" in lines[-2]
    assert lines[-1] == "    no date in it"
    full = reef("sessions", "show", f"run-{dialect}", "--full", "--all", REEF_URL=gateway.url).stdout
    assert full.count(LONG) == 2
    assert "user       Title, please" in full
    parts = [json.loads(line) for line in reef("sessions", "show", f"run-{dialect}", "--json", REEF_URL=gateway.url).stdout.splitlines()]
    assert [part["session"]["records"] for part in parts] == [5]


def test_sessions_are_listed_newest_first(gateway: Service) -> None:
    for dialect in RUNS:
        work(gateway, dialect)
    done = reef("sessions", REEF_URL=gateway.url)
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["session", "run-responses", "run-messages", "run-chat"]
    assert "2 upstream_error" in done.stdout
    found = [json.loads(line) for line in reef("sessions", "--limit", "2", "--json", REEF_URL=gateway.url).stdout.splitlines()]
    assert [(item["id"], item["records"], item["score"]) for item in found] == [("run-responses", 5, 0.0), ("run-messages", 5, 0.0)]
    assert "no sessions yet" in reef("sessions", "-s", "elsewhere", REEF_URL=gateway.url).stdout


def test_the_scenario_may_stand_before_or_after_show_and_a_wrong_one_is_explained(gateway: Service) -> None:
    gateway.chat(x_reef_session="run", x_reef_scenario="mine")
    for arguments in (("sessions", "-s", "mine", "show", "run"), ("sessions", "show", "run", "-s", "mine")):
        assert "session run of mine" in reef(*arguments, REEF_URL=gateway.url).stdout
    done = reef("sessions", "show", "run", REEF_URL=gateway.url)
    assert (done.returncode, "has no records" in done.stderr, "reef sessions -s default" in done.stderr) == (1, True, True)


def test_an_agent_s_text_cannot_steer_the_terminal(gateway: Service) -> None:
    gateway.chat({"model": "m", "messages": [{"role": "user", "content": "\x1b]0;title\x07[bold]hi[/bold]"}]}, x_reef_session="run")
    out = reef("sessions", "show", "run", REEF_URL=gateway.url).stdout
    assert "\x1b" not in out
    assert "[bold]hi[/bold]" in out
