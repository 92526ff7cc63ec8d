"""The demo's job: a date in one of four written forms is to be written as YYYY-MM-DD.

The dates that are shown, those of the gate's tasks and those of the final check are drawn apart: no date is in two of them. The tasks are
written by `python -m recipes.sft.examples.demo_weights.dates`.
"""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass

FIRST, LAST = datetime.date(1950, 1, 1), datetime.date(2049, 12, 31)
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
SEARCHED, CONFIRMED = 32, 48
"""How many dates the gate searches and confirms with."""
PURPOSES = {"gate": SEARCHED + CONFIRMED, "curve": 200, "rollback": 20, "shown": 10_000}
"""What dates are for, and the most that there are."""
QUESTION = "Write this date as YYYY-MM-DD: {written}"


@dataclass(frozen=True, slots=True)
class Job:
    """One thing to ask, and what should be answered."""

    prompt: str
    expected: str


def written(day: datetime.date, *, form: int) -> str:
    """A date in one of the forms, 0 to 3."""
    month = MONTHS[day.month - 1]
    forms = (
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"{month[:3]} {day.day} {day.year}",
        f"the {day.day}{ordinal(day.day)} of {month}, {day.year}",
    )
    return forms[form]


def ordinal(number: int) -> str:
    """What follows a number in words: 1st, 2nd, 11th."""
    return "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def drawn(purpose: str, count: int) -> list[Job]:
    """So many jobs for a purpose, the four forms in turn; always the same."""
    order = list(range((LAST - FIRST).days))
    random.Random(7).shuffle(order)  # noqa: S311 - to be the same each time
    begin = 0
    for other, most in PURPOSES.items():
        if other == purpose:
            assert count <= most, f"there are {most} dates for {purpose}"
            break
        begin += most
    return [_job(FIRST + datetime.timedelta(days=day), form=number % 4) for number, day in enumerate(order[begin : begin + count])]


def right(answer: str, job: Job) -> bool:
    """Exact match."""
    return answer.strip() == job.expected


def _job(day: datetime.date, *, form: int) -> Job:
    return Job(QUESTION.format(written=written(day, form=form)), day.isoformat())


def tasks_yaml() -> str:
    """The gate's tasks, as ``evaluation.tasks`` names them."""
    lines = ["# Written by `python -m recipes.sft.examples.demo_weights.dates`. None of these dates is ever shown.", "tasks:"]
    for number, job in enumerate(drawn("gate", SEARCHED + CONFIRMED)):
        split = "search" if number < SEARCHED else "heldout"
        lines.append(
            f'  - {{id: date-{number:02}, split: {split}, prompt: "{job.prompt}", grader: {{type: exact, expected: "{job.expected}"}}}}'
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(tasks_yaml(), end="")
