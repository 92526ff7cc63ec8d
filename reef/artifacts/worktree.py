"""Work trees: a branch checked out into a private folder, for the time somebody edits it.

Each folder is owned by an open, locked file beside it. The operating system drops the lock with the process, however it ended, so a
folder whose lock can be taken is left over from a crash and is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from reef.errors import Conflict, StorageError


class Repository(Protocol):
    """What this module needs of the artifact repository."""

    path: Path

    def run(self, *arguments: str, stdin: bytes | None = None) -> bytes: ...

    def ref(self, name: str) -> str | None: ...


@contextlib.contextmanager
def open_worktree(repository: Repository, branch: str, *, base: str) -> Iterator[Path]:
    """See :meth:`reef.artifacts.repository.ArtifactRepository.worktree`."""
    if repository.ref(branch) is not None:
        raise Conflict(f"the branch {branch} exists already", hint="Give the candidate another id.")
    prune_worktrees(repository)
    home = _home(repository)
    home.mkdir(mode=0o700, exist_ok=True)
    descriptor, folder = _claim(home)
    try:
        try:
            repository.run("worktree", "add", "--quiet", "--no-track", "-b", branch, str(folder), base)
        except StorageError as error:
            if "already exists" in error.message:
                raise Conflict(f"the branch {branch} exists already", hint="Give the candidate another id.") from error
            raise
        yield folder
    finally:
        _remove(repository, folder)
        os.close(descriptor)


def prune_worktrees(repository: Repository) -> list[str]:
    """Remove the work trees of processes that are gone; their branches stay. Returns the folders' names."""
    removed = []
    for lock in sorted(_home(repository).glob("work-*.lock")):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(repository, lock.with_suffix(""))
            removed.append(lock.stem)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
    return removed


def _claim(home: Path) -> tuple[int, Path]:
    """A folder name that is ours for as long as the descriptor stays open."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix="work-", suffix=".lock", dir=home)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if Path(name).exists():  # else another process pruned it before we held the lock
            return descriptor, Path(name).with_suffix("")
        os.close(descriptor)


def _remove(repository: Repository, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    repository.run("worktree", "prune", "--expire=now")
    folder.with_suffix(".lock").unlink(missing_ok=True)


def _home(repository: Repository) -> Path:
    return repository.path.with_name(f"{repository.path.stem}-work")
