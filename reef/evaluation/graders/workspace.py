"""A workspace, read and written though an agent made it: no link is followed, nothing but a plain file is read, and only so far."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from reef.types import File

MAX_READ_BYTES = 1 << 20
MAX_FILES = 100_000


def subject(workspace: Path, file: str, answer: str) -> str | None:
    """The text to grade: the answer, or a file; None where that is missing or is not a plain file inside the workspace."""
    if not file:
        return answer
    with opened(workspace, file) as found:
        return None if found is None else found.read(MAX_READ_BYTES).decode("utf-8", "replace")


@contextlib.contextmanager
def opened(workspace: Path, file: str) -> Iterator[IO[bytes] | None]:
    """A plain file inside the workspace, or None."""
    path = workspace / file
    try:
        inside = path.parent.resolve().is_relative_to(workspace.resolve())
        # a named pipe must not hold us up
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) if inside else None
    except (OSError, RuntimeError, ValueError):  # not there, a link, or links in a circle
        descriptor = None
    if descriptor is None:
        yield None
        return
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        yield None
        return
    with os.fdopen(descriptor, "rb") as found:
        yield found


def names(workspace: Path) -> Iterator[str]:
    """The files of a workspace by their POSIX paths, sorted within each folder; links are not followed, and only so many are looked at."""
    count = 0
    for folder, folders, files in os.walk(workspace):
        folders.sort()
        for name in sorted(files):
            count += 1
            if count > MAX_FILES:
                return
            yield Path(folder, name).relative_to(workspace).as_posix()


def lay(workspace: Path, path: str, content: str | File) -> None:
    """Write a file of the task over whatever is there, never through a link the agent may have planted."""
    folder = workspace
    *folders, name = path.split("/")
    for part in folders:
        folder /= part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(exist_ok=True)
    target = folder / name
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.write_bytes(content.data if isinstance(content, File) else content.encode())
    if isinstance(content, File) and content.executable:
        target.chmod(0o755)


def short(text: str) -> str:
    """A text on one line, quoted."""
    one_line = " ".join(text.split())
    return repr(one_line if len(one_line) <= 80 else one_line[:79] + "…")
