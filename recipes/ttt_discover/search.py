"""The search: pick a start by PUCT, ask the gateway for several attempts, verify, report, keep what is new."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction

from recipes.traffic import Gateway
from recipes.ttt_discover.archive import Archive, Entry
from recipes.ttt_discover.problems import Problem, Refused


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the model answered, and what it is worth."""

    receipt: str
    value: Fraction | None
    """None where it is no solution."""
    solution: str
    why: str = ""


@dataclass(slots=True)
class Progress:
    """Where a search stands."""

    rounds: int = 0
    attempts: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    best: Fraction | None = None
    solution: str = ""
    best_after: int = 0
    """Attempts it took."""
    best_after_s: float = 0.0


class Search:
    """One search on one problem.

    Args:
        siblings: attempts from one start; they are a group for the recipe.
        name: names its sessions and groups; another search must have another one.
    """

    def __init__(self, problem: Problem, *, gateway: Gateway, archive: Archive, siblings: int, name: str) -> None:
        self._problem = problem
        self._gateway = gateway
        self._archive = archive
        self._siblings = siblings
        self._name = name
        self._began = time.monotonic()
        self.progress = Progress()
        if archive.best is not archive.root:
            self._note(archive.best.solution)

    def run(self, *, rounds: int, seconds: float, tell: Callable[[Progress], None] = lambda _progress: None) -> Progress:
        """Search until the budget is used up.

        Raises:
            UpstreamError: the gateway does not answer, or refuses reports.
        """
        with ThreadPoolExecutor(self._siblings) as pool:
            while self.progress.rounds < rounds and time.monotonic() - self._began < seconds:
                self._round(pool)
                tell(self.progress)
        return self.progress

    def _round(self, pool: ThreadPoolExecutor) -> None:
        start = self._archive.pick()
        group = f"{self._name}-{self._archive.expansions}"
        attempts = list(pool.map(lambda number: self._attempt(start, f"{group}-{number}"), range(self._siblings)))
        for attempt in attempts:
            self._report(attempt, group=group)
        self.progress.rounds += 1
        for attempt in attempts:
            self.progress.attempts += 1
            if attempt.value is None:
                self.progress.refused[attempt.why] += 1
            elif self.progress.best is None or attempt.value > self.progress.best:
                self._note(attempt.solution)
        self._archive.expand(start, [(one.solution, float(one.value)) for one in attempts if one.value is not None])

    def _note(self, solution: str) -> None:
        """A new best one, verified once more as it is kept."""
        progress = self.progress
        progress.best, progress.solution = self._problem.verify(solution).value, solution
        progress.best_after, progress.best_after_s = progress.attempts, time.monotonic() - self._began

    def _attempt(self, start: Entry, session: str) -> Attempt:
        said = self._gateway.ask([{"role": "user", "content": self._problem.prompt(start.solution)}], session=session)
        try:
            verified = self._problem.verify(said.text)
        except Refused as error:
            return Attempt(said.receipt, None, "", str(error))
        return Attempt(said.receipt, verified.value, verified.solution)

    def _report(self, attempt: Attempt, *, group: str) -> None:
        score = 0.0 if attempt.value is None else self._problem.score(attempt.value)
        self._gateway.report(attempt.receipt, score=score, metadata={"group": group}, feedback=attempt.why)
