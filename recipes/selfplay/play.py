"""The rounds: a task is proposed, checked, tried by the head several times, and reported on where it is worth it."""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from recipes.selfplay import tasks
from recipes.selfplay.tasks import Outcome, SelfTask
from recipes.traffic import Gateway, Said
from reef.errors import ProposalError

RULES = "AGENTS.md"
"""What of a harness these tasks can use: no tools are needed, so its rules are the system prompt and the rest is not."""


@dataclass(slots=True)
class Played:
    """What came of all rounds."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    attempts: int = 0
    reports: int = 0
    solved: list[float] = field(default_factory=list)
    """Of the tasks that were kept, the share of attempts that solved them."""


class Play:
    """Plays against itself.

    Args:
        proposer: the model that sets the tasks; empty: the one that solves them.
        attempts: tries at each task, at least 2.
        name: names the sessions.
        keep: file that gets the tasks that were kept, a line of JSON each.
        plain: whether the proposer is asked by examples, for a small model.
    """

    def __init__(
        self, gateway: Gateway, *, proposer: str = "", attempts: int = 8, name: str, keep: Path | None = None, plain: bool = False
    ) -> None:
        self._gateway = gateway
        self._proposer = proposer
        self._attempts = attempts
        self._name = name
        self._keep = keep
        self._plain = plain
        self._dice = random.Random(name)  # noqa: S311 - which examples are shown is no secret
        self._before: list[tuple[str, float]] = []
        self._known: set[str] = set()
        self._rounds = 0
        self.played = Played()

    def run(self, rounds: int) -> Played:
        """Play some rounds.

        Raises:
            UpstreamError: the gateway does not answer.
        """
        with ThreadPoolExecutor(self._attempts) as pool:
            for _ in range(rounds):
                self.round(pool)
        return self.played

    def round(self, pool: ThreadPoolExecutor) -> Outcome:
        """One task."""
        self._rounds += 1
        outcome = self._round(pool)
        self.played.outcomes[outcome] += 1
        return outcome

    def _round(self, pool: ThreadPoolExecutor) -> Outcome:
        session = f"{self._name}-{self._rounds}"
        asked = tasks.request_plainly(self._dice) if self._plain else [{"role": "user", "content": tasks.request(self._before)}]
        said = self._gateway.ask(asked, session=f"{session}-set", model=self._proposer)
        try:
            task = tasks.parse(said.text)
        except ProposalError:
            return "no_task"
        if task.prompt in self._known:
            return "known"
        self._known.add(task.prompt)
        if (wrong := tasks.fault(task)) is not None:
            return wrong
        answers = self._try(task, pool, session=session)
        grades = task.check([answer.text for answer in answers])
        solved = sum(score >= 1.0 for score, _ in grades)
        self.played.attempts += len(answers)
        self._before.append((task.prompt, solved / len(answers)))
        if solved in (0, len(answers)):
            return "too_hard" if solved == 0 else "too_easy"
        self._take(task, answers, grades)
        self.played.solved.append(solved / len(answers))
        return "kept"

    def _try(self, task: SelfTask, pool: ThreadPoolExecutor, *, session: str) -> list[Said]:
        """The head's answers."""
        step, files = self._gateway.harness()
        rules = files.get(RULES, "").strip()
        asked = [{"role": "system", "content": rules}] if rules else []
        asked.append({"role": "user", "content": task.prompt})
        return list(pool.map(lambda number: self._gateway.ask(asked, session=f"{session}-{number}", release=step), range(self._attempts)))

    def _take(self, task: SelfTask, answers: list[Said], grades: list[tuple[float, str]]) -> None:
        for answer, (score, detail) in zip(answers, grades, strict=True):
            feedback = "" if score >= 1.0 else detail
            self._gateway.report(answer.receipt, score=score, metadata={"group": task.id, "checker": task.kind}, feedback=feedback)
            self.played.reports += 1
        if self._keep is not None:
            with self._keep.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"id": task.id, **task.model_dump()}) + "\n")
