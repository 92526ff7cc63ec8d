"""The archive of past solutions, and PUCT: which of them to start from next.

    score(s) = Q(s) + c · span · P(s) · √(1 + T) / (1 + n(s))

Q is the best value that came of starting from s (its own value before that), P a prior by rank that falls linearly from the best to the
worst, n how often s or what came from it was started from, T how often anything was, span the range of values in the archive. The empty
start is always there, and its n counts it alone: all comes from it, and it would never be returned to. Kept as lines of JSON: a search
that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reef.errors import ConfigError

MOST = 1000
"""Solutions that are kept; the worst go first."""


@dataclass(slots=True)
class Entry:
    """One solution, or the empty start."""

    id: int
    solution: str
    value: float
    parent: int | None
    visits: int = 0
    best: float = -math.inf
    """The best value that came of starting here."""

    @property
    def quality(self) -> float:
        """Q."""
        return self.value if self.best == -math.inf else self.best


class Archive:
    """Past solutions.

    Args:
        file: where they are kept; None keeps them in memory alone.
        start: the value of having nothing.
        exploration: c.

    Raises:
        ConfigError: the file is of something else.
    """

    def __init__(self, file: Path | None = None, *, start: float = 0.0, exploration: float = 1.0) -> None:
        self._file = file
        self._exploration = exploration
        self._next = 1
        self.expansions = 0
        """T."""
        self.root = Entry(0, "", start, None)
        self.entries = {0: self.root}
        if file is not None and file.exists():
            self._read(file)

    @property
    def best(self) -> Entry:
        """The best solution; the empty start where there is none."""
        return max(self.entries.values(), key=lambda entry: (entry.value, -entry.id))

    def pick(self) -> Entry:
        """What to start from next."""
        ranked = sorted(self.entries.values(), key=lambda entry: (-entry.value, entry.id))
        span = (ranked[0].value - ranked[-1].value) or 1.0
        total = len(ranked) * (len(ranked) + 1) / 2
        spread = self._exploration * span * math.sqrt(1 + self.expansions)
        scores = {entry.id: entry.quality + spread * (len(ranked) - rank) / total / (1 + entry.visits) for rank, entry in enumerate(ranked)}
        return max(ranked, key=lambda entry: scores[entry.id])

    def expand(self, entry: Entry, found: list[tuple[str, float]]) -> list[Entry]:
        """Note that ``entry`` was started from, and what came of it: solutions and their values. Returns those that are new."""
        self._append({"expand": entry.id, "found": found})
        return self._expand(entry, found)

    def _expand(self, entry: Entry, found: list[tuple[str, float]]) -> list[Entry]:
        entry.best = max([entry.best, *(value for _, value in found)])
        self.expansions += 1
        for one in self._line(entry):
            one.visits += 1
        known = {one.solution for one in self.entries.values()}
        added = []
        for solution, value in found:
            if solution not in known:
                known.add(solution)
                added.append(Entry(self._next, solution, value, entry.id))
                self.entries[self._next] = added[-1]
                self._next += 1
        while len(self.entries) > MOST:
            worst = min((one for one in self.entries.values() if one is not self.root), key=lambda one: (one.value, -one.id))
            del self.entries[worst.id]
        return added

    def _line(self, entry: Entry) -> list[Entry]:
        """An entry and what it came from, as far as that is kept, without the empty start."""
        line = [entry]
        while parent := line[-1].parent:  # neither None nor the empty start
            if parent not in self.entries:
                break
            line.append(self.entries[parent])
        return line

    def _append(self, step: dict[str, Any]) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(step) + "\n")

    def _read(self, file: Path) -> None:
        try:
            for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n"):  # else: the search was killed while it wrote it
                    step = json.loads(line)
                    if (entry := self.entries.get(step["expand"])) is not None:
                        self._expand(entry, [(str(solution), float(value)) for solution, value in step["found"]])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file} is no archive of a search: {error}", hint="Give --archive another file.") from None
