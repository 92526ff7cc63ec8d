"""Trajectories: short, readable accounts of the sessions that reports quote.

An agent sends its whole history with every request, so the longest prompt of a session and the answer to it tell all of it. What is
long is cut in the middle, where the least is lost: the beginning says what was tried and the end how it went.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reef.errors import NotFound
from reef.experience import dialects
from reef.experience.store import ExperienceStore
from reef.types import JSON, End, Origin, Record, Report

MAX_TASK_CHARS = 2_000
MAX_MESSAGE_CHARS = 1_500
MAX_FEEDBACK_CHARS = 4_000
MAX_SESSION_CHARS = 12_000
MAX_TOTAL_CHARS = 60_000
_NOT_TEXT = ("tool_use", "tool_result", "thinking", "redacted_thinking")
"""Content blocks that are told as lines of their own, or not at all."""
MAX_REFERENCES = 200
"""Receipts of one report that are looked at, its last ones: the longest prompt is among them."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One session, as a proposer reads it."""

    session: str | None
    """None for a single exchange outside any session."""
    task: str
    """What the user asked first."""
    transcript: str
    feedback: tuple[str, ...]
    score: float | None
    """The lowest it was given."""


def analyse(reports: Sequence[Report], *, store: ExperienceStore, max_sessions: int) -> tuple[tuple[Trajectory, ...], int]:
    """Accounts of the sessions that ``reports`` quote, and how many were left out to stay within the bounds."""
    records: dict[str, list[Record]] = {}
    quoting: dict[str, list[Report]] = {}
    for report in reports:
        for key, found in _by_session(report, store=store).items():
            records.setdefault(key, []).extend(found)
            quoting.setdefault(key, []).append(report)
    chosen = list(records)[:max_sessions]
    trajectories: list[Trajectory] = []
    room = MAX_TOTAL_CHARS
    for key in chosen:
        trajectory = _trajectory(records[key], reports=quoting[key])
        room -= len(trajectory.task) + len(trajectory.transcript) + sum(map(len, trajectory.feedback))
        if room < 0 and trajectories:
            break
        trajectories.append(trajectory)
    return tuple(trajectories), len(records) - len(trajectories)


def _by_session(report: Report, *, store: ExperienceStore) -> dict[str, list[Record]]:
    """The records a report quotes, by session; a record outside any session stands for itself.

    Trials and proposals are no user's work: whoever quotes them by mistake must not show the evaluation's tasks to a proposer.
    """
    found: dict[str, list[Record]] = {}
    for record in _quoted(report, store=store):
        if record.scenario == report.scenario and record.origin is Origin.USER:
            found.setdefault(record.session or f"record {record.id}", []).append(record)
    return found or {f"report {report.id}": []}  # what was said still counts


def _quoted(report: Report, *, store: ExperienceStore) -> list[Record]:
    if report.session is not None:
        return store.session_records(report.scenario, report.session)
    records = []
    for receipt in report.references[-MAX_REFERENCES:]:
        try:
            records.append(store.record(receipt))
        except NotFound:  # pruned since: the others still tell something
            continue
    return records


def _trajectory(records: Sequence[Record], *, reports: Sequence[Report]) -> Trajectory:
    scores = [report.score for report in reports if report.score is not None]
    feedback = [text for report in reports if (text := readable(report.feedback))]
    messages: Sequence[JSON] = ()
    lines: list[str] = []
    # Side requests (titles, summaries) are short; the last of equally long ones is the retry that counted.
    last = max(records, key=lambda record: len(_messages(record)), default=None)
    if last is not None:
        messages = _messages(last)
        lines = [line for message in messages for line in _lines(message)] + _ending(last)
    task = next((readable(message.get("content")) for message in messages if message.get("role") == "user"), "")
    return Trajectory(
        session=last.session if last is not None else None,
        task=shorten(task, MAX_TASK_CHARS) or "(not recorded)",
        transcript=_within(lines, MAX_SESSION_CHARS) or "(not recorded)",
        feedback=tuple(dict.fromkeys(shorten(text, MAX_FEEDBACK_CHARS) for text in feedback)),
        score=min(scores, default=None),
    )


def _messages(record: Record) -> list[Mapping[str, JSON]]:
    """The turns that were sent, whatever the dialect; a bare string is what a user said."""
    parts = dialects.named(record.dialect).take_prompt(record.request)
    turns = parts[0] if parts else ()
    return [turn if isinstance(turn, dict) else {"role": "user", "content": turn} for turn in turns if isinstance(turn, (dict, str))]


def _lines(message: Mapping[str, JSON]) -> list[str]:
    """One turn as lines of a transcript: a chat message, a message of content blocks, or an item of the responses dialect."""
    kind = message.get("type")
    if kind == "function_call":
        return [_call("assistant", message.get("name"), message.get("arguments"))]
    if kind == "function_call_output":
        return [f"[tool] {shorten(readable(message.get('output')), MAX_MESSAGE_CHARS)}"]
    role, content = str(message.get("role")), message.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    text = readable([block for block in blocks if block.get("type") not in _NOT_TEXT] if blocks else content)
    if role in ("system", "developer"):
        return [f"[{role}] ({len(text)} characters, written by the agent from the harness)"]
    lines = [f"[{role}] {shorten(text, MAX_MESSAGE_CHARS)}"] if text else []
    for block in blocks:
        if block.get("type") == "tool_use":
            lines.append(_call(role, block.get("name"), block.get("input")))
        elif block.get("type") == "tool_result":
            lines.append(f"[tool] {shorten(readable(block.get('content')), MAX_MESSAGE_CHARS)}")
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            lines.append(_call(role, function.get("name"), function.get("arguments")))
    return lines


def _call(role: str, name: JSON, arguments: JSON) -> str:
    return f"[{role} calls {name}] {shorten(readable(arguments), MAX_MESSAGE_CHARS)}"


def _ending(record: Record) -> list[str]:
    """The answer to the last prompt, and how the exchange ended where that was not well."""
    parts = dialects.named(record.dialect).take_answer(record.response)
    lines = [line for turn in (parts[0] if parts else ()) if isinstance(turn, dict) for line in _lines(turn)]
    if record.end is not End.COMPLETE:
        lines.append(f"[the exchange ended: {record.end}] {shorten(record.error, 300)}")
    return lines


def _within(lines: Sequence[str], bound: int) -> str:
    """The lines within a bound: the first quarter of it from the beginning, the rest from the end."""
    if sum(len(line) + 1 for line in lines) <= bound:
        return "\n".join(lines)
    head: list[str] = []
    tail: list[str] = []
    room = bound
    for line in lines:
        if sum(map(len, head)) + len(line) > bound // 4:
            break
        head.append(line)
        room -= len(line) + 1
    for line in reversed(lines[len(head) :]):
        if len(line) + 1 > room:
            break
        tail.append(line)
        room -= len(line) + 1
    return "\n".join([*head, f"[… {len(lines) - len(head) - len(tail)} entries left out …]", *reversed(tail)])


def readable(value: JSON) -> str:
    """Text as it is, a list of parts by their texts, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(part, dict) and "type" in part for part in value):
        return "\n".join(str(part.get("text") or f"({part['type']})") for part in value).strip()
    return json.dumps(value, ensure_ascii=False)


def shorten(text: str, bound: int) -> str:
    """At most about ``bound`` characters: what is cut out is in the middle, and said."""
    if len(text) <= bound:
        return text
    head, tail = bound * 2 // 3, bound // 3
    return f"{text[:head]} [… {len(text) - head - tail} characters left out …] {text[-tail:]}"
