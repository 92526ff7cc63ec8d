"""How tasks, and what became of their examples, are shown to a person at a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.markup import escape
from rich.table import Table

from reef.cli.show import console
from reef.evaluation import checking
from reef.types import Task


def show_tasks(tasks: Sequence[Task]) -> None:
    """A line for each task, and how many there are in each split."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("task", "split", "grader", "weight", "group", "tags", "needs"):
        table.add_column(column, overflow="fold")
    for task in tasks:
        tags = [*task.tags, *(("protected",) if task.protected else ())]
        needs = f"Docker, for {task.setup.container.why}" if task.setup.container else ""
        columns = (task.id, task.split, task.grader, f"{task.weight:g}", task.group or "–", ", ".join(tags) or "–", needs or "–")
        table.add_row(*map(escape, columns))
    console.print(table)
    counts = Counter(task.split for task in tasks)
    console.print(f"{len(tasks)} tasks: " + ", ".join(f"{number} {split}" for split, number in counts.items()))


@dataclass
class Checked:
    """What a check has found so far."""

    graded: list[checking.Graded] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    """Tasks that lack a good or a bad example."""
    lines: list[str] = field(default_factory=list)
    failed: bool = False

    def add(self, task: Task, graded: Sequence[checking.Graded]) -> None:
        """Take in the examples of a task."""
        self.graded += graded
        labels = {item.good for item in graded}
        lacking = [name for good, name in ((True, "good"), (False, "bad")) if good not in labels]
        if lacking:
            self.without.append(task.id)
            self.lines.append(f"[yellow]–[/yellow] {escape(task.id)} ({task.grader}): no {' and no '.join(lacking)} example")
        for item in graded:
            mark = "[green]✓[/green]" if item.right else "[red]✗[/red]"
            score = "no score" if item.score is None else f"{item.score:g}"
            label = "good" if item.good else "bad"
            self.lines.append(f"{mark} {escape(task.id)} ({task.grader}): a {label} one: {score}, {escape(item.detail)}")

    def conclude(self, *, agreement: float, strict: bool) -> None:
        """Say how it went over all."""
        right, asked = checking.agreement(self.graded)
        wrong = [item for item in self.graded if not item.right and (item.score is None or not item.asks_a_model)]
        total = len(self.graded)
        console.print(f"{sum(item.right for item in self.graded)} of {total} examples graded as they are labelled")
        if asked:
            console.print(f"the judge agrees with {right} of {asked} labels ({right / asked:.0%})")
        if self.without:
            console.print(f"{len(self.without)} tasks lack a good or a bad example: {escape(', '.join(self.without))}")
        self.failed = bool(wrong) or (asked > 0 and right < agreement * asked) or (strict and bool(self.without))


def show_check(checked: Checked) -> None:
    """Print what came since the last time."""
    for line in checked.lines:
        console.print(line)
    checked.lines.clear()
