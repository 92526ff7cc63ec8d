"""A task made from an agent run that happened: what its user asked first, and how the outcome was reported.

What the run's user knew and a program cannot is the grade, so the grader of such a task is the judge, with a rubric that holds what was
reported; whoever knows a better check gives it. The outcome itself becomes the example that the grader is checked with.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from reef.errors import NotFound
from reef.evaluation.checking import GOOD
from reef.experience import telling
from reef.experience.sessions import Exchange, main_thread
from reef.experience.turns import made_by_model
from reef.types import JSON, Record, Report

MAX_ANSWER_CHARS = 20_000
_INJECTED = re.compile(
    r"<(?P<tag>system-reminder|environment_context|environment_details|user_instructions)>.*?</(?P=tag)>"
    r"|\A# AGENTS\.md instructions.*?(?:</INSTRUCTIONS>|\Z)",
    re.DOTALL,
)
"""What an agent itself says in the user's place: rules, and where it works."""


def entry(
    records: Sequence[Record], reports: Sequence[Report], *, name: str = "", grader: Mapping[str, JSON] | None = None
) -> dict[str, Any]:
    """A session as an entry of a task set.

    Args:
        records: all of the session's, as stored.
        reports: on it or on records of it; the newest with a score counts.
        name: the task's id; else it is made from the session's.
        grader: with its ``type``; else a judge.

    Raises:
        NotFound: there are no records, or no user says anything in them.
    """
    thread = main_thread(records)
    if thread is None:
        raise NotFound("the session has no records", hint="`reef sessions` lists those there are.")
    prompt = next((text for exchange in thread.exchanges if (text := _asked(exchange))), "")
    if not prompt:
        raise NotFound("nobody asks anything in the session", hint="`reef sessions show ID --full` prints what was said.")
    session = records[0].session or ""
    report = _outcome(reports)
    answer = _answer(thread.last)
    told: dict[str, Any] = {
        "id": name or "captured-" + (re.sub(r"[^A-Za-z0-9._-]", "-", session)[:60] or "run"),
        "prompt": prompt,
        # the same question asked twice is one task in two wordings of its outcome: never on both sides of a split
        "group": "asked-" + hashlib.sha256(" ".join(prompt.split()).encode()).hexdigest()[:16],
        "grader": dict(grader) if grader else _judge(report, answer),
        "tags": ["captured"],
        "outcome": {"session": session, "scenario": records[0].scenario, **_reported(report)},
    }
    if report is not None and report.score is not None and answer:
        told["examples"] = {"good" if report.score >= GOOD else "bad": {"answer": answer}}
    return told


def question(records: Sequence[Record]) -> str:
    """What the user of a session asked first; empty where nobody asked anything."""
    thread = main_thread(records)
    return next((text for exchange in thread.exchanges if (text := _asked(exchange))), "") if thread else ""


def final_answer(records: Sequence[Record]) -> str:
    """What its agent said last; empty where it said nothing."""
    thread = main_thread(records)
    return _answer(thread.last) if thread else ""


def as_yaml(told: Mapping[str, Any]) -> str:
    """An entry as an item of a list, indented to stand below ``tasks:``."""
    text = yaml.dump([dict(told)], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return "".join(f"  {line}" if line.strip() else line for line in text.splitlines(keepends=True))


def _asked(exchange: Exchange) -> str:
    """What the user says in the first turns of an exchange, without what the agent adds in the user's name."""
    for turn in exchange.new:
        if made_by_model(turn):
            return ""
        said = [part.text for part in telling.parts(turn) if part.kind is telling.Kind.USER]
        if text := _INJECTED.sub("", "\n".join(said).strip()).strip():
            return text
    return ""


def _answer(exchange: Exchange) -> str:
    said = [part.text for turn in exchange.answer for part in telling.parts(turn) if part.kind is telling.Kind.ASSISTANT]
    return telling.cut("\n".join(said), MAX_ANSWER_CHARS)


def _outcome(reports: Sequence[Report]) -> Report | None:
    newest = sorted(reports, key=lambda report: report.created_at, reverse=True)
    return next((report for report in newest if report.score is not None), newest[0] if newest else None)


def _reported(report: Report | None) -> dict[str, JSON]:
    found = {} if report is None else {"score": report.score, "feedback": report.feedback}
    return {key: value for key, value in found.items() if value is not None}


def _judge(report: Report | None, answer: str) -> dict[str, JSON]:
    if report is None:
        return {"type": "judge", "rubric": "It does all that the task asks for, and nothing that it does not ask for."}
    said = telling.readable(report.feedback)
    said = f", who said: {said}" if said else ""
    if report.score is None:
        return {"type": "judge", "rubric": f"It does what the task asks for. An earlier outcome was reported on by its user{said}"}
    if report.score >= GOOD and answer:
        rubric = f"It does what the task asks for, as well as the reference. That was given {report.score:g} of 1 by its user{said}"
        return {"type": "judge", "rubric": rubric, "reference": answer}
    rubric = f"It does what the task asks for. An earlier outcome was given {report.score:g} of 1 by its user{said}"
    return {"type": "judge", "rubric": rubric + "\nAn outcome that has the same fault does not do it."}


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, so that a person can read and mend them."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
