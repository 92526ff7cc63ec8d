"""Folders of files that come with a task, read whole and with a bound: they are laid down anew for each trial."""

from __future__ import annotations

import os
from pathlib import Path

from reef.artifacts.tree import check_path
from reef.errors import InvalidTree
from reef.types import File

MAX_FILES = 5_000
MAX_BYTES = 64 << 20
LEFT_OUT = frozenset({".git", "__pycache__", "node_modules", ".venv"})
"""Folders that a captured workspace does not need to be the same."""


def read(folder: Path, *, leave_out: frozenset[str] = frozenset()) -> dict[str, File]:
    """The files of a folder by their POSIX paths.

    Raises:
        OSError: it cannot be read.
        InvalidTree: it holds a link, or too much.
    """
    found: dict[str, File] = {}
    size = 0
    if not folder.is_dir():
        raise NotADirectoryError(20, "not a folder", str(folder))
    for place, names, files in os.walk(folder, onerror=_raise):
        names[:] = sorted(name for name in names if name not in leave_out)
        for name in (*names, *sorted(files)):
            path = Path(place, name)
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink():
                raise InvalidTree(f"{relative} is a link", hint="Only plain files are laid into a workspace.")
            if path.is_dir():
                continue
            check_path(relative)
            found[relative] = file(path)
            size += len(found[relative].data)
            if len(found) > MAX_FILES or size > MAX_BYTES:
                raise InvalidTree(
                    f"{folder} has more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB", hint="Have a set-up command make what is large."
                )
    return found


def file(path: Path) -> File:
    """One plain file.

    Raises:
        OSError: it cannot be read, or is too large.
    """
    status = path.stat()
    if status.st_size > MAX_BYTES:
        raise OSError(27, f"larger than {MAX_BYTES >> 20} MiB", str(path))
    if not path.is_file():
        raise OSError(22, "not a plain file", str(path))
    return File(path.read_bytes(), bool(status.st_mode & 0o100))


def problem(error: Exception) -> str:
    """What is wrong, in a few words that name the path."""
    if isinstance(error, InvalidTree):
        return error.message
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _raise(error: OSError) -> None:
    raise error
