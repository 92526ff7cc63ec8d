"""What Pi is asked to do: write a date or an amount into a file, as in `make demo`.

What is demonstrated, what the gate tries and what is checked in the end are drawn apart: no date, no amount and no name of a file that
somebody showed is in the other two. What the model practises afterwards, for rewards, is drawn apart from all of that, and so is what it is
judged and checked by then: dates in forms that nobody demonstrated ("7 MARCH 2024", "7. März 2024", "07.03.2024"); the last two the
rehearsal does not know. The gate's tasks are written by `python -m recipes.sft.examples.pi_tools.jobs`.
"""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recipes.sft.examples.demo_weights.dates import FIRST, LAST, MONTHS, written

Kind = Literal["date", "amount", "other date"]
KINDS: tuple[Kind, ...] = ("date", "date", "amount")
"""In turn: an amount is only copied, and needs fewer examples than a date."""
GERMAN = ["Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober", "November", "Dezember"]
SHOWN_FILES = ("date", "day", "log", "notes", "when", "due", "entry", "plan", "start", "report", "meeting", "trip", "order", "visit")
OTHER_FILES = ("birthday", "delivery", "invoice", "launch", "summary", "total", "travel", "value")
ENDINGS = (".txt", ".md")
SEARCHED, CONFIRMED = 24, 24
"""How many tasks the gate searches and confirms with."""
PURPOSES = {"gate": SEARCHED + CONFIRMED, "check": 120, "shown": 3000}
"""What jobs are for, and the most that there are."""
PRACTICE = {"practice gate": SEARCHED + CONFIRMED, "practice check": 120, "practice": 2000}
"""The same of what nobody demonstrates."""
TASKS = {"gate": "tasks.yaml", "practice gate": "practice_tasks.yaml"}
"""Where the tasks of the gate are."""


@dataclass(frozen=True, slots=True)
class Job:
    """One thing to ask, and what should then be in which file."""

    kind: Kind
    prompt: str
    file: str
    expected: str


def drawn(purpose: str, count: int) -> list[Job]:
    """So many jobs for a purpose, the kinds in turn; always the same."""
    purposes = PURPOSES | PRACTICE
    assert count <= purposes[purpose], f"there are {purposes[purpose]} jobs for {purpose}"
    everything = iter(_numbers(sum(purposes.values())))
    by_purpose = {name: [next(everything) for _ in range(most)] for name, most in purposes.items()}
    names = SHOWN_FILES if purpose in ("shown", "practice") else OTHER_FILES
    files = [name + ending for name in names for ending in ENDINGS]
    random.Random(purpose).shuffle(files)  # noqa: S311 - to be the same each time
    kept = list(enumerate(by_purpose[purpose][:count]))
    if purpose in PRACTICE:
        return [_other_date(number, files[place % len(files)], form=place % 3) for place, number in kept]
    return [_job(KINDS[place % len(KINDS)], number, files[place % len(files)]) for place, number in kept]


def _numbers(count: int) -> list[int]:
    """What dates and amounts are made of; none comes twice."""
    days = list(range((LAST - FIRST).days))
    random.Random(11).shuffle(days)  # noqa: S311 - to be the same each time
    return days[:count]


def _job(kind: Kind, number: int, file: str) -> Job:
    if kind == "date":
        day = FIRST + datetime.timedelta(days=number)
        return Job(kind, f"Write the date {written(day, form=0)} to {file}", file, day.isoformat())
    amount = f"{number}" if number % 2 else f"{number // 100}.{number % 100:02}"
    return Job(kind, f"Write the amount {amount} to {file}", file, amount)


def _other_date(number: int, file: str, *, form: int) -> Job:
    day = FIRST + datetime.timedelta(days=number)
    forms = (
        f"{day.day} {MONTHS[day.month - 1].upper()} {day.year}",
        f"{day.day}. {GERMAN[day.month - 1]} {day.year}",
        f"{day.day:02}.{day.month:02}.{day.year}",
    )
    return Job("other date", f"Write the date {forms[form]} to {file}", file, day.isoformat())


def tasks_yaml(purpose: str = "gate") -> str:
    """The gate's tasks, as ``evaluation.tasks`` names them."""
    lines = ["# Written by `python -m recipes.sft.examples.pi_tools.jobs`. None of these is ever demonstrated.", "tasks:"]
    for number, job in enumerate(drawn(purpose, SEARCHED + CONFIRMED)):
        split = "search" if number < SEARCHED else "heldout"
        lines.append(f"  - id: {job.kind.replace(' ', '-')}-{number:02}\n    split: {split}\n    prompt: {job.prompt}")
        lines.append(f'    grader: {{type: exact, file: {job.file}, expected: "{job.expected}"}}')
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for purpose, file in TASKS.items():
        (Path(__file__).parent / file).write_text(tasks_yaml(purpose), encoding="utf-8")
