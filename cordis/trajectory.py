"""Trajectories: short, readable accounts of the sessions that reports quote.

An agent sends its whole history with every request; told is its main thread, each turn once. Side calls (titles, checks) are left out, and
sub-agents named only: what they found stands in the main thread. What is long is cut in the middle, where the least is lost: the beginning
says what was tried and the end how it went.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reef.errors import NotFound
from reef.experience import telling
from reef.experience.sessions import Thread, ThreadKind, threads
from reef.experience.store import ExperienceStore
from reef.experience.telling import Kind, Part, readable
from reef.types import JSON, End, Origin, Record, Report

MAX_TASK_CHARS = 2_000
MAX_MESSAGE_CHARS = 1_500
MAX_FEEDBACK_CHARS = 4_000
MAX_SESSION_CHARS = 12_000
MAX_TOTAL_CHARS = 60_000
MAX_AGENT_CHARS = 200
"""Of the task of a sub-agent."""
MAX_REFERENCES = 200
"""Receipts of one report that are looked at, its last ones: the longest prompt is among them."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One session, as a proposer reads it."""

    session: str | None
    """None where nothing was recorded."""
    task: str
    """What the user asked first."""
    transcript: str
    feedback: tuple[str, ...]
    score: float | None
    """The lowest it was given."""


def analyse(
    reports: Sequence[Report], *, store: ExperienceStore, max_sessions: int, withheld: frozenset[str] = frozenset()
) -> tuple[tuple[Trajectory, ...], int]:
    """Accounts of the sessions that ``reports`` quote, and how many were left out to stay within the bounds.

    Args:
        withheld: sessions that tasks were made of which a proposer must not know: nothing of them is told, nor what was said of them.
    """
    records: dict[str, dict[str, Record]] = {}
    quoting: dict[str, list[Report]] = {}
    for report in reports:
        sessions = _by_session(report, store=store)
        if withheld & {report.session, *sessions}:
            continue
        for key, found in sessions.items():
            records.setdefault(key, {}).update((record.id, record) for record in found)
            quoting.setdefault(key, []).append(report)
    chosen = list(records)[:max_sessions]
    trajectories: list[Trajectory] = []
    room = MAX_TOTAL_CHARS
    for key in chosen:
        in_order = sorted(records[key].values(), key=lambda record: record.started_at)
        trajectory = _trajectory(in_order, reports=quoting[key])
        room -= len(trajectory.task) + len(trajectory.transcript) + sum(map(len, trajectory.feedback))
        if room < 0 and trajectories:
            break
        trajectories.append(trajectory)
    return tuple(trajectories), len(records) - len(trajectories)


def _by_session(report: Report, *, store: ExperienceStore) -> dict[str, list[Record]]:
    """The records a report quotes, by session.

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
    split = threads(records)
    main = next((thread for thread in split if thread.kind is ThreadKind.MAIN), None)
    lines = [] if main is None else [*_told(main), *_sub_agents(split)]
    return Trajectory(
        session=records[-1].session if records else None,
        task=shorten("" if main is None else _task(main), MAX_TASK_CHARS) or "(not recorded)",
        transcript=_within(lines, MAX_SESSION_CHARS) or "(not recorded)",
        feedback=tuple(dict.fromkeys(shorten(text, MAX_FEEDBACK_CHARS) for text in feedback)),
        score=min(scores, default=None),
    )


def _task(main: Thread) -> str:
    """What the user said first."""
    parts = (part for exchange in main.exchanges for turn in exchange.new for part in telling.parts(turn))
    return next((part.text for part in parts if part.kind is Kind.USER and part.text), "")


def _told(main: Thread) -> list[str]:
    """A thread as lines. Of a prompt that was sent several times only what came of the last try is told."""
    lines: list[str] = []
    exchanges = main.exchanges
    for exchange, following in zip(exchanges, [*exchanges[1:], None], strict=True):
        if exchange.rewritten:
            lines.append("[the history was changed here]")
        lines += _lines([*exchange.system, *exchange.new] if exchange is exchanges[0] else exchange.new)
        if following is None or following.retry_of is None:
            lines += _lines(exchange.answer)
            if exchange.record.end is not End.COMPLETE:
                lines.append(f"[the exchange ended: {exchange.record.end}] {shorten(exchange.record.error, 300)}")
    return lines


def _sub_agents(split: Sequence[Thread]) -> list[str]:
    found = [thread for thread in split if thread.kind is ThreadKind.AGENT]
    return [f"[a sub-agent worked on: {shorten(_task(thread), MAX_AGENT_CHARS)}] ({thread.tries} exchanges)" for thread in found]


def _lines(turns: Iterable[JSON]) -> list[str]:
    """Turns as lines of a transcript. Reasoning is no part of it."""
    parts = (part for turn in turns for part in telling.parts(turn))
    return [_line(part) for part in parts if part.kind is not Kind.REASONING]


def _line(part: Part) -> str:
    if part.kind is Kind.SYSTEM:
        return f"[system] ({len(part.text)} characters, written by the agent from the harness)"
    text = shorten(part.text, MAX_MESSAGE_CHARS)
    if part.kind is Kind.CALL:
        return f"[assistant calls {part.name}] {text}"
    return f"[{'tool' if part.kind is Kind.RESULT else part.kind}] {text}"


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


def shorten(text: str, bound: int) -> str:
    """At most about ``bound`` characters: what is cut out is in the middle, and said."""
    if len(text) <= bound:
        return text
    head, tail = bound * 2 // 3, bound // 3
    return f"{text[:head]} [… {len(text) - head - tail} characters left out …] {text[-tail:]}"
