"""Which tasks a candidate is searched with, confirmed with, and never meets.

``search`` tasks judge every candidate, and are the only ones that a proposer may be told of. ``heldout`` tasks confirm a candidate that did
well on those. ``sealed`` tasks are used only where somebody asks for them, such as for a final figure.

A task's split hangs on nothing but its group's name (its own id, where it has no group): adding tasks moves none, and tasks that are
related, hence in one group, never stand on both sides. The shares are cut from both ends of the hash's range, so a change of one share
moves tasks between it and ``search`` only.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Iterable

from reef.config import SplitsConfig
from reef.errors import ConfigError
from reef.types import Task

SEARCH, HELDOUT, SEALED = "search", "heldout", "sealed"
SPLITS = (SEARCH, HELDOUT, SEALED)
ALL_SEARCH = SplitsConfig()


def split_of(group: str, *, shares: SplitsConfig) -> str:
    """The split of a group by its name."""
    place = int.from_bytes(hashlib.sha256(b"reef-split\0" + group.encode()).digest()[:8], "big") / 2**64
    if place < shares.sealed:
        return SEALED
    return HELDOUT if place >= 1 - shares.heldout else SEARCH


def assign(tasks: Iterable[Task], *, shares: SplitsConfig) -> tuple[Task, ...]:
    """Give each task the split of its group.

    Tasks whose ``split`` is not empty keep it, and so does their whole group.

    Raises:
        ConfigError: tasks of a group are put into different splits.
    """
    tasks = tuple(tasks)
    fixed: dict[str, Task] = {}
    for task in tasks:
        if task.split:
            first = fixed.setdefault(task.group or task.id, task)
            if first.split != task.split:
                raise ConfigError(
                    f"task {task.id}: split: {task.split}, but {first.id} of the same group {task.group} is {first.split}",
                    hint="Related tasks stay together: give both the same split, or groups of their own.",
                )
    placed = []
    for task in tasks:
        group = task.group or task.id
        split = fixed[group].split if group in fixed else split_of(group, shares=shares)
        placed.append(dataclasses.replace(task, split=split))
    return tuple(placed)


def of(tasks: Iterable[Task], splits: Collection[str]) -> tuple[Task, ...]:
    """The tasks of some splits."""
    return tuple(task for task in tasks if task.split in splits)
