"""What a person has to look at before it is released, whatever the gate says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reef.types import Candidate, Component

HELD_BY_DEFAULT = ("extensions", "hooks", "settings")
"""Folders of a harness whose files make a coding agent run code on its user's machine."""


def why_held(candidate: Candidate, changed: Iterable[str], *, hold: Sequence[str]) -> str:
    """Why a candidate waits for a person; empty where it need not.

    Args:
        candidate: what is to be released.
        changed: the paths of the harness that it adds, removes or changes.
        hold: names of folders and files at the top of a harness, and of components.
    """
    components = [name for name in candidate.components if name in hold]
    if components:
        return f"changes the {' and the '.join(components)}"
    if Component.HARNESS not in candidate.components:
        return ""
    paths = [path for path in changed if path.split("/", 1)[0] in hold]
    if not paths:
        return ""
    rest = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return f"changes {', '.join(paths[:3])}{rest}"
