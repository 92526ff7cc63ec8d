"""What a tree may hold, and its identity."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from reef.errors import InvalidTree
from reef.types import File, Tree

MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class LargeFile(File):
    """A file whose bytes are kept beside git. ``data`` is the pointer that git has in their place."""

    sha256: str = ""
    size_bytes: int = 0


def sha256_of(file: File) -> str:
    """Hex SHA-256 of a file's bytes, wherever they are."""
    return file.sha256 if isinstance(file, LargeFile) else hashlib.sha256(file.data).hexdigest()


def content_id(tree: Tree) -> str:
    """Identity of a tree's bytes: hex SHA-256 over its sorted (path, mode, SHA-256 of the bytes). Independent of git and of history."""
    digest = hashlib.sha256()
    for path in sorted(tree, key=str.encode):
        file = tree[path]
        digest.update(f"{path}\0{file.mode}\0{sha256_of(file)}\n".encode())
    return digest.hexdigest()


def check_path(path: str) -> None:
    """Refuse a path that could leave the tree, hide in it, or mean different things on different machines.

    Raises:
        InvalidTree: absolute, empty, with ``..``, ``.``, an empty part, a backslash, a control character, a ``.git`` part, or too long.
    """
    problem = _problem(path)
    if problem:
        raise InvalidTree(f"the path {path!r} {problem}", hint="Use a relative POSIX path such as skills/tests/SKILL.md.")


def check_paths(tree: Tree) -> None:
    """:func:`check_path` for every path; a path that is both a file and a folder is refused as well."""
    folders: set[str] = set()
    for path in tree:
        check_path(path)
        parts = path.split("/")[:-1]
        folders.update("/".join(parts[: depth + 1]) for depth in range(len(parts)))
    clash = min(folders & tree.keys(), default=None)
    if clash is not None:
        raise InvalidTree(f"{clash!r} is a file and a folder at once", hint="Rename one of them.")


def changed_paths(old: Mapping[str, File], new: Mapping[str, File]) -> tuple[str, ...]:
    """Paths that were added, removed or changed, sorted."""
    return tuple(sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path)))


def _problem(path: str) -> str:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    whole = {
        "is empty": not path,
        "is absolute": path.startswith("/"),
        "has a backslash": "\\" in path,
        "has a control character": not path.isprintable(),
        f"is longer than {MAX_PATH_BYTES} bytes": size > MAX_PATH_BYTES,
    }
    return next((problem for problem, found in whole.items() if found), "") or next(filter(None, map(_part_problem, path.split("/"))), "")


def _part_problem(part: str) -> str:
    if part in ("", ".", ".."):
        return f"has the part {part!r}"
    if len(part.encode()) > MAX_NAME_BYTES:
        return f"has a part longer than {MAX_NAME_BYTES} bytes"
    if part.casefold().rstrip(". ") in (".git", "git~1"):  # the second is its short name on Windows
        return "has a .git part"
    return ""
