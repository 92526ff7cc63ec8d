"""Large files, kept as Git LFS keeps them: a pointer in git, the bytes once in ``lfs/objects``, by SHA-256.

Nothing here needs the program git-lfs; with it, ``git lfs fsck``, ``push`` and ``clone`` of the repository work. A file comes in by a
reflink where the file system has them and else by a hard link, so that it is on the disk once and read once, to be hashed. After a hard
link the file it was taken from is the same file: it becomes read-only.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from reef.artifacts.tree import LargeFile
from reef.errors import Conflict, InvalidTree, StorageError
from reef.failpoints import reach
from reef.types import File, Tree

LARGE_BYTES = 10 << 20
LARGE_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx")
ATTRIBUTES = ".gitattributes"

_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize ([0-9]{1,18})\n")
_MARK = b"# Large files, by Reef. What is below this line is not part of the tree.\n"
_FICLONE = 0x40049409
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)


class LargeFiles:
    """The large files of one repository. Threads and processes may share them.

    Args:
        repository: the bare repository's folder.
    """

    def __init__(self, repository: Path) -> None:
        self._objects = repository / "lfs" / "objects"
        self._temporary = repository / "lfs" / "tmp"

    def path(self, sha256: str) -> Path:
        """Where the bytes are, or would be."""
        return self._objects / sha256[:2] / sha256[2:4] / sha256

    def put(self, source: Path, *, executable: bool = False) -> LargeFile:
        """Take a file in.

        Raises:
            Conflict: it was written to meanwhile.
            StorageError: the disk refused.
        """
        self._temporary.mkdir(parents=True, exist_ok=True)
        name = Path(tempfile.mkdtemp(prefix="in-", dir=self._temporary)) / "file"
        try:
            share(source, name)
            sha256, size_bytes = _hash(name)
            reach("lfs.hashed")
            target = self.path(sha256)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                name.rename(target)
            target.chmod(0o444)  # also where it was there: what was used lately is not collected
            for folder in (target.parent, target.parent.parent, self._objects):
                _sync(folder)
            reach("lfs.placed")
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"{source} cannot be taken into {self._objects}: {error}", hint="Is the disk full?") from error
        finally:
            shutil.rmtree(name.parent, ignore_errors=True)
        return LargeFile(pointer(sha256, size_bytes), executable, sha256, size_bytes)

    def check(self, tree: Tree) -> None:
        """Refuse a tree whose large files are not here, or whose small ones would pass for the pointer of one.

        Raises:
            InvalidTree: as said.
        """
        for path, file in tree.items():
            if isinstance(file, LargeFile):
                if problem := self.problem(file):
                    raise InvalidTree(f"{path}: {problem}", hint="Take the file in first: `reef release import` does.")
            elif len(file.data) < 200 and _POINTER.fullmatch(file.data):
                raise InvalidTree(f"{path} is the pointer of a Git LFS object, not the file", hint="Fetch it first: git lfs pull.")
        own = tree.get(ATTRIBUTES)
        if own is not None and _MARK in own.data:
            raise InvalidTree(f"{ATTRIBUTES} has Reef's own lines", hint="Delete them; they are added where they are needed.")

    def problem(self, file: LargeFile, *, read: bool = False) -> str:
        """What is wrong with the bytes of a file; empty where they are as they should be.

        Args:
            read: also read them, and compare the digest.
        """
        try:
            size_bytes = self.path(file.sha256).stat().st_size
        except OSError:
            return f"the LFS object {file.sha256[:12]} is missing"
        if size_bytes != file.size_bytes:
            return f"the LFS object {file.sha256[:12]} has {size_bytes} bytes, not {file.size_bytes}"
        if read and _hash(self.path(file.sha256))[0] != file.sha256:
            return f"the LFS object {file.sha256[:12]} has other bytes than its name says"
        return ""

    def all(self) -> Iterator[Path]:
        """Every object that is here."""
        return (path for path in self._objects.glob("??/??/*") if path.is_file())

    def unfinished(self) -> Iterator[Path]:
        """What was being taken in, by processes that run or ran."""
        return self._temporary.glob("in-*")


def is_large(path: str, size_bytes: int) -> bool:
    """Whether a file of a folder is kept as a large one."""
    return size_bytes >= LARGE_BYTES or path.endswith(LARGE_SUFFIXES)


def pointer(sha256: str, size_bytes: int) -> bytes:
    """What git has in a large file's place."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size_bytes}\n".encode()


def file_of(blob: bytes, *, executable: bool) -> File:
    """The file that a blob in git stands for."""
    found = _POINTER.fullmatch(blob) if len(blob) < 200 else None
    if found is None:
        return File(blob, executable)
    return LargeFile(blob, executable, found[1].decode(), int(found[2]))


def with_attributes(tree: Tree) -> Tree:
    """The tree as it is written to git: with the attributes that make git-lfs know its large files."""
    large = sorted(path for path, file in tree.items() if isinstance(file, LargeFile))
    if not large:
        return tree
    own = tree[ATTRIBUTES].data if ATTRIBUTES in tree else b""
    executable = tree[ATTRIBUTES].executable if ATTRIBUTES in tree else False
    lines = b"".join(f"{_pattern(path)} filter=lfs diff=lfs merge=lfs -text\n".encode() for path in large)
    return {**tree, ATTRIBUTES: File(own + _MARK + lines, executable)}


def without_attributes(files: Mapping[str, File]) -> Tree:
    """The other way: the tree as it was given."""
    tree = dict(files)
    own, mark, _ = tree[ATTRIBUTES].data.partition(_MARK) if ATTRIBUTES in tree else (b"", b"", b"")
    if mark and own:
        tree[ATTRIBUTES] = File(own, tree[ATTRIBUTES].executable)
    elif mark:
        del tree[ATTRIBUTES]
    return MappingProxyType(tree)


def share(source: Path, target: Path) -> None:
    """Make ``target`` have the bytes of ``source`` without writing them again, where the file system can do that."""
    with source.open("rb") as given, target.open("xb") as taken:
        try:
            fcntl.ioctl(taken, _FICLONE, given.fileno())
            return
        except OSError:
            target.unlink()
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copyfile(source, target)  # another file system


def _hash(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        before = os.fstat(file.fileno())
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise Conflict(f"{path} was written to while it was read", hint="Wait until it is finished.")
    return sha256, after.st_size


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pattern(path: str) -> str:
    """The path as a pattern of .gitattributes that matches it alone."""
    escaped = re.sub(r"([\\*?\[\]])", r"\\\1", f"/{path}")
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"' if re.search(r'[\s"\\]', escaped) else escaped
