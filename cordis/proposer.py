"""Proposers: writers of harness edits. :class:`LLMProposer` is the default one, and the one to copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from cordis.edits import MAX_EDITS, EditPlan, parse
from cordis.fences import Prompt
from cordis.trajectory import Trajectory, shorten
from reef.errors import InvalidTree, ProposalError
from reef.learner.recipe import Model
from reef.types import Tree

ANSWERS = 3
"""Answers a model may give until one can be used."""
MAX_FILE_CHARS = 8_000
MAX_TREE_CHARS = 60_000
MAX_ATTEMPTS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Earlier:
    """An attempt for the same reports that was not released."""

    summary: str
    reason: str
    """Why not."""
    diff: str

    def __str__(self) -> str:
        return f"{self.summary}\nNot released: {shorten(self.reason, 1_000)}\n{shorten(self.diff, 3_000)}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a proposer works on."""

    purpose: str
    """Names the model calls in the records."""
    adapter: str
    tree: Tree
    """The harness to improve."""
    sessions: tuple[Trajectory, ...]
    sessions_left_out: int = 0
    earlier: tuple[Earlier, ...] = field(default=())


class Proposer(ABC):
    """Turns failed sessions into edits. Stateless; made without arguments; found by its entry point in ``reef.proposers``."""

    @abstractmethod
    def propose(self, assignment: Assignment, *, model: Model, check: Callable[[EditPlan], None]) -> EditPlan:
        """Write the edits.

        Args:
            assignment: the harness, what went wrong with it, and what was tried.
            model: a language model; its calls are recorded.
            check: raises InvalidTree for edits that would be refused, with a reason to learn from. Call it before returning.

        Raises:
            ProposalError: nothing usable came of it.
            UpstreamError: the model cannot be asked now; the learner tries again later.

        Example:
            ``return EditPlan(summary="Dates are ISO", edits=(Edit(path="AGENTS.md", action="append", content="- …"),))``
        """


class LLMProposer(Proposer):
    """Asks a language model; an answer that cannot be used goes back with the reason."""

    def propose(self, assignment: Assignment, *, model: Model, check: Callable[[EditPlan], None]) -> EditPlan:
        prompt = Prompt()
        messages = [
            {"role": "system", "content": prompt.render("system.md.j2", adapter=assignment.adapter, max_edits=MAX_EDITS)},
            {"role": "user", "content": _task(prompt, assignment)},
        ]
        reason = ""
        for number in range(1, ANSWERS + 1):
            answer = model.ask(messages, purpose=assignment.purpose)
            try:
                plan = parse(answer)
                check(plan)
                return plan
            except (ProposalError, InvalidTree) as error:
                reason = " ".join(part for part in (error.message, error.hint) if part)
            messages += [
                {"role": "assistant", "content": shorten(answer.encode("utf-8", "replace").decode(), MAX_FILE_CHARS)},
                {"role": "user", "content": prompt.render("retry.md.j2", number=number, reason=reason)},
            ]
        raise ProposalError(f"none of {ANSWERS} answers could be used; the last one: {reason}", hint="Try a stronger upstream.model.")


def _task(prompt: Prompt, assignment: Assignment) -> str:
    files = _files(assignment.tree)
    return prompt.render(
        "task.md.j2",
        files=files,
        files_left_out=len(assignment.tree) - len(files),
        sessions=assignment.sessions,
        sessions_left_out=assignment.sessions_left_out,
        earlier=assignment.earlier[-MAX_ATTEMPTS_SHOWN:],
    )


def _files(tree: Tree) -> list[str]:
    """The tree as text, rules first; extensions and settings only by name, since they are not to be edited."""
    shown: list[str] = []
    room = MAX_TREE_CHARS
    for path in sorted(tree, key=lambda path: (path != "AGENTS.md", path)):
        if path.startswith(("extensions/", "settings/")):
            text = f"path: {path}\n\n({len(tree[path].data)} bytes, not to be edited)"
        else:
            text = f"path: {path}\n\n{shorten(tree[path].data.decode('utf-8', 'replace'), MAX_FILE_CHARS)}"
        room -= len(text)
        if room < 0:
            break
        shown.append(text)
    return shown
