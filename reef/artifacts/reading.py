"""Many objects read from one git process: for an audit of a long chain, where a process for each would take minutes.

Every object is hashed and compared with its id, so what was read is what was written.
"""

from __future__ import annotations

import hashlib
import os
import select
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType

from reef.artifacts import lfs
from reef.artifacts.repository import GIT_TIMEOUT_S, ArtifactRepository
from reef.artifacts.tree import LargeFile, sha256_of
from reef.errors import InvalidTree, StorageError
from reef.types import File

PART_BYTES = 1 << 16
KNOWN_ENTRIES = 500_000


class ObjectReader:
    """``git cat-file --batch``, for as long as it is open. For one thread."""

    def __init__(self, artifacts: ArtifactRepository) -> None:
        self._artifacts = artifacts

    def __enter__(self) -> ObjectReader:
        self._process = subprocess.Popen(
            self._artifacts.command("cat-file", "--batch"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self._artifacts.git.git.environment()},
            bufsize=0,
        )
        self._rest = b""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def get(self, identifier: str) -> tuple[str, bytes]:
        """The kind and the bytes of an object.

        Raises:
            StorageError: it is missing, damaged, or git does not answer in time.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{identifier}\n".encode())
        except BrokenPipeError:
            raise StorageError(f"git ended while the object {identifier} was read", hint="Run `git fsck` there.") from None
        header = self._until_newline().split(b" ")
        if len(header) != 3:
            raise StorageError(f"the object {identifier} is missing", hint="Restore it from a clone: git fetch.")
        kind, data = header[1].decode(), self._exactly(int(header[2]) + 1)[:-1]
        found = hashlib.sha1(b"%s %d\0%s" % (header[1], len(data), data), usedforsecurity=False).hexdigest()
        if found != identifier:
            raise StorageError(f"the object {identifier} is damaged", hint="Restore it from a clone: git fetch.")
        return kind, data

    def _until_newline(self) -> bytes:
        while b"\n" not in self._rest:
            self._rest += self._part()
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _exactly(self, size: int) -> bytes:
        parts, have = [self._rest], len(self._rest)
        while have < size:
            parts.append(self._part())
            have += len(parts[-1])
        joined = b"".join(parts)
        self._rest = joined[size:]
        return joined[:size]

    def _part(self) -> bytes:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], GIT_TIMEOUT_S)
        part = os.read(self._process.stdout.fileno(), PART_BYTES) if ready else b""
        if not part:
            raise StorageError("git cat-file ended or does not answer", hint="Run `git fsck` there.")
        return part


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, as an audit looks at it."""

    tree: str
    parents: tuple[str, ...]


@dataclass(slots=True)
class Contents:
    """Content ids of commits, each part of a tree read once however many commits share it."""

    reader: ObjectReader
    _files: dict[str, tuple[str, LargeFile | None]] = field(default_factory=dict)
    """Digest of a blob's bytes, and the large file it is the pointer of."""
    _folders: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    """Path, mode and blob of every file below a folder."""
    _roots: dict[str, tuple[str, tuple[LargeFile, ...]]] = field(default_factory=dict)

    def commit(self, identifier: str) -> Commit:
        """A commit's tree and parents."""
        kind, data = self.reader.get(identifier)
        if kind != "commit":
            raise StorageError(f"{identifier} is a {kind}, not a commit", hint="Run `git fsck` there.")
        head = [line.partition(b" ") for line in data.partition(b"\n\n")[0].split(b"\n")]
        named = [(key, value.decode()) for key, _, value in head if key in (b"tree", b"parent")]
        return Commit(named[0][1], tuple(value for key, value in named if key == b"parent"))

    def of(self, root: str) -> tuple[str, tuple[LargeFile, ...]]:
        """The content id of a tree, and its large files."""
        if root not in self._roots:
            self._roots[root] = self._content(root)
        return self._roots[root]

    def _content(self, root: str) -> tuple[str, tuple[LargeFile, ...]]:
        lines, large = [], []
        for path, mode, blob in self._below(root, keep=False):
            digest, pointed_at = self._file(blob)
            if path == lfs.ATTRIBUTES:
                left = lfs.without_attributes({path: File(self.reader.get(blob)[1])})
                if not left:
                    continue
                digest = sha256_of(left[path])
            if pointed_at is not None:
                large.append(pointed_at)
            lines.append((path.encode(), f"{path}\0{mode}\0{digest}\n".encode()))
        lines.sort()
        return hashlib.sha256(b"".join(line for _, line in lines)).hexdigest(), tuple(large)

    def _below(self, folder: str, *, keep: bool) -> list[tuple[str, str, str]]:
        if folder in self._folders:
            return self._folders[folder]
        found: list[tuple[str, str, str]] = []
        for name, mode, identifier in _entries(self.reader.get(folder)[1]):
            if mode == "40000":
                found += [(f"{name}/{path}", mode, blob) for path, mode, blob in self._below(identifier, keep=True)]
            elif mode in ("100644", "100755"):
                found.append((name, mode, identifier))
            else:
                raise InvalidTree(f"{name} is a link or a submodule", hint="Use plain files only.")
        if keep and len(self._folders) * 16 < KNOWN_ENTRIES:
            self._folders[folder] = found
        return found

    def _file(self, blob: str) -> tuple[str, LargeFile | None]:
        known = self._files.get(blob)
        if known is None:
            file = lfs.file_of(self.reader.get(blob)[1], executable=False)
            known = sha256_of(file), file if isinstance(file, LargeFile) else None
            if len(self._files) < KNOWN_ENTRIES:
                self._files[blob] = known
        return known


def _entries(data: bytes) -> Iterator[tuple[str, str, str]]:
    """Name, mode and id of what is in a git tree."""
    position = 0
    while position < len(data):
        end = data.index(b"\0", position)
        mode, _, name = data[position:end].partition(b" ")
        position = end + 21
        yield name.decode("utf-8", "surrogateescape"), mode.decode(), data[end + 1 : position].hex()
