"""The artifact repository: one bare git repository that plain git can read, clone and push."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import git

from reef.artifacts import lfs
from reef.artifacts.objects import ObjectSet
from reef.artifacts.tree import check_paths, content_id
from reef.artifacts.worktree import open_worktree, prune_worktrees
from reef.errors import Conflict, InvalidRequest, InvalidTree, NotFound, StorageError
from reef.types import Tree

GIT_TIMEOUT_S = 60.0
CACHED_BYTES = 64 << 20
"""Of trees that were read; the last one stays whatever its size."""
KNOWN_ROOTS = 1000
NO_COMMIT = "0" * 40
"""As the ``old`` of :meth:`ArtifactRepository.set_ref`: the ref must not exist yet."""

_HEX = re.compile(r"[0-9a-f]{40}")
_SETTINGS = {
    "core.logAllRefUpdates": "false",
    "core.fsync": "committed,loose-object,reference",  # an object a transaction points at must survive loss of power …
    "core.fsyncMethod": "batch",  # … at the price of one flush for all of a commit's objects
    "core.filesRefLockTimeout": "10000",
    "core.packedRefsTimeout": "10000",
    "gc.auto": "0",
}
_ATTRIBUTES = "* -text -filter -ident -working-tree-encoding\n"
"""Outranks any .gitattributes inside a tree: a work tree holds the bytes that were committed, not a version of them."""
_STRAY_VARIABLES = ("GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY")
"""Set by git around its hooks; ours would follow them into the wrong repository."""


class ArtifactRepository:
    """A bare git repository, created when missing. Threads and processes may share it.

    Commands run isolated from the user's and the system's git configuration: no signing, no hook, no filter of theirs takes part.

    Args:
        path: the repository's folder, by convention ``<state_dir>/artifacts.git``.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path).absolute()
        if not (self.path / "HEAD").exists():
            _create(self.path)
        self.git = git.Repo(self.path)
        self.git.git.update_environment(**_environment(self.path))
        self.large = lfs.LargeFiles(self.path)
        self._trees: OrderedDict[str, Tree] = OrderedDict()
        self._cached_bytes = 0
        self._roots: OrderedDict[str, str] = OrderedDict()  # the id of a commit's root tree
        self._lock = threading.Lock()

    def commit(
        self,
        tree: Tree,
        *,
        parents: Sequence[str] = (),
        message: str,
        trailers: Mapping[str, object] | None = None,
        at: float | None = None,
    ) -> str:
        """Store a tree as a commit by Reef and return its id. No ref points at it yet.

        Args:
            tree: the files.
            parents: commits it comes from, the main line first.
            message: subject and body.
            trailers: lines for the end of the message; ``Reef-Content-Id`` is added.
            at: Unix seconds; now by default.

        Raises:
            InvalidTree: a path that may not be stored, or a large file that is not in :attr:`large`.
            StorageError: git could not write.
        """
        check_paths(tree)
        self.large.check(tree)
        objects = ObjectSet()
        root = objects.add_tree(lfs.with_attributes(tree))
        trailers = {**(trailers or {}), "Reef-Content-Id": content_id(tree)}
        commit = self._write(objects, root, parents=parents, message=message, trailers=trailers, at=at)
        self._remember(commit, MappingProxyType(dict(tree)))  # whoever wrote it is about to read it
        return commit

    def recommit(
        self, commit: str, *, parents: Sequence[str], message: str, trailers: Mapping[str, object], at: float | None = None
    ) -> str:
        """Store the files of a commit as another one, with other parents: costs the same however many they are."""
        other = self._write(ObjectSet(), self._root(commit), parents=parents, message=message, trailers=trailers, at=at)
        with self._lock:
            tree = self._trees.get(commit)
        if tree is not None:
            self._remember(other, tree)
        return other

    def _write(
        self,
        objects: ObjectSet,
        root: str,
        *,
        parents: Sequence[str],
        message: str,
        trailers: Mapping[str, object],
        at: float | None,
    ) -> str:
        for parent in parents:
            _check_commit(parent)
        moment = time.time() if at is None else at
        commit = objects.add_commit(tree=root, parents=parents, message=message, trailers=trailers, at=moment)
        self.run("unpack-objects", "-q", "--strict", stdin=objects.pack())
        self._note_root(commit, root)
        return commit

    def _root(self, commit: str) -> str:
        _check_commit(commit)
        with self._lock:
            known = self._roots.get(commit)
        if known is None:
            known = self.run("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()
            self._note_root(commit, known)
        return known

    def _note_root(self, commit: str, root: str) -> None:
        with self._lock:
            self._roots[commit] = root
            while len(self._roots) > KNOWN_ROOTS:
                self._roots.popitem(last=False)

    def read(self, commit: str) -> Tree:
        """The files of a commit; kept in memory for the next reader, since a commit never changes.

        Raises:
            NotFound: there is no such commit.
            InvalidTree: it holds a symbolic link or a submodule.
        """
        _check_commit(commit)
        with self._lock:
            if commit in self._trees:
                self._trees.move_to_end(commit)
                return self._trees[commit]
        tree = self._read(commit)
        self._remember(commit, tree)
        return tree

    def _remember(self, commit: str, tree: Tree) -> None:
        size_bytes = _size_bytes(tree)
        with self._lock:
            if commit not in self._trees:
                self._trees[commit] = tree
                self._cached_bytes += size_bytes
            while len(self._trees) > 1 and self._cached_bytes > CACHED_BYTES:
                self._cached_bytes -= _size_bytes(self._trees.popitem(last=False)[1])

    def diff(self, old: str, new: str) -> str:
        """What ``git diff OLD NEW`` prints, without colours."""
        _check_commit(old)
        _check_commit(new)
        output = self.run("-c", "core.quotePath=false", "diff", "--no-color", "--no-ext-diff", "--no-textconv", old, new, "--")
        return output.decode("utf-8", "replace")

    def ref(self, name: str) -> str | None:
        """The commit a ref points at, or None. A name without ``refs/`` is a branch."""
        output = self.run("for-each-ref", "--format=%(refname) %(objectname)", full_ref(name)).decode()
        return dict(line.split(" ") for line in output.splitlines()).get(full_ref(name))

    def refs(self) -> dict[str, str]:
        """All branches and tags by full name."""
        output = self.run("for-each-ref", "--format=%(refname) %(objectname)").decode()
        return dict(line.split(" ") for line in output.splitlines())

    def set_ref(self, name: str, new: str, *, old: str | None = None) -> None:
        """Point a ref at a commit. A name without ``refs/`` is a branch.

        Args:
            name: the ref.
            new: the commit.
            old: what the ref must point at now, :data:`NO_COMMIT` for nothing; None sets it whatever it is.

        Raises:
            Conflict: the ref is not at ``old``.
        """
        self.set_refs({name: new}, old=None if old is None else {name: old})

    def set_refs(self, targets: Mapping[str, str], *, old: Mapping[str, str] | None = None) -> None:
        """Point several refs at commits: all of them or none.

        Args:
            targets: the commits by ref.
            old: where the refs must be now, as in :meth:`set_ref`; a ref that is not named here is set whatever it is.

        Raises:
            Conflict: one of them is elsewhere.
        """
        expected = old or {}
        for commit in (*targets.values(), *expected.values()):
            _check_commit(commit)
        # NUL-terminated fields of `update-ref --stdin -z`; an empty old value means "whatever it is".
        commands = "".join(f"update {full_ref(name)}\0{new}\0{expected.get(name, '')}\0" for name, new in targets.items())
        self._update_refs(commands)

    def delete_refs(self, refs: Mapping[str, str]) -> None:
        """Delete refs, each where it is at the commit given; all of them or none.

        Raises:
            Conflict: one of them is elsewhere.
        """
        commands = "".join(f"delete {full_ref(name)}\0{commit}\0" for name, commit in refs.items())
        self._update_refs(commands)

    def _update_refs(self, commands: str) -> None:
        try:
            self.run("update-ref", "--stdin", "-z", stdin=commands.encode())
        except StorageError as error:
            if any(sign in error.message for sign in ("but expected", "already exists", "unable to resolve")):
                raise Conflict(f"a ref moved meanwhile: {error.message}", hint="Read it again and decide anew.") from error
            raise

    def offer_default(self, branch: str) -> None:
        """Let ``git clone`` check ``branch`` out, unless there is another branch that it does."""
        current = self.run("symbolic-ref", "HEAD").decode().strip()
        if self.ref(current) is None:
            self.run("symbolic-ref", "HEAD", full_ref(branch))

    @contextlib.contextmanager
    def worktree(self, branch: str, *, base: str) -> Iterator[Path]:
        """Create ``branch`` at ``base`` and check it out into a private folder that is removed at the end; the branch stays.

        Raises:
            Conflict: the branch exists.
        """
        _check_commit(base)
        with open_worktree(self, branch, base=base) as folder:
            yield folder

    def prune(self) -> list[str]:
        """Remove what crashed processes left: work trees, and ref locks that no live git command can hold. Says what was removed."""
        removed = [f"work tree {name}" for name in prune_worktrees(self)]
        too_old = time.time() - 2 * GIT_TIMEOUT_S
        for lock in (*(self.path / "refs").rglob("*.lock"), *self.path.glob("*.lock")):
            with contextlib.suppress(FileNotFoundError):
                if lock.stat().st_mtime < too_old:
                    lock.unlink()
                    removed.append(f"ref lock {lock.relative_to(self.path)}")
        return removed

    def command(self, *arguments: str) -> list[str]:
        """A git command line for this repository; its environment is that of :attr:`git`."""
        return _command(*arguments)

    def run(self, *arguments: str, stdin: bytes | None = None, timeout_s: float = GIT_TIMEOUT_S) -> bytes:
        """Run one git command in the repository, isolated and bounded in time; return what it printed.

        Raises:
            StorageError: it failed or took too long.
        """
        with tempfile.TemporaryFile() as given:
            given.write(stdin or b"")
            given.seek(0)
            try:
                return self.git.git.execute(
                    _command(*arguments),
                    istream=given,
                    stdout_as_string=False,
                    strip_newline_in_stdout=False,
                    kill_after_timeout=timeout_s,
                )
            except git.GitCommandNotFound as error:
                raise StorageError("git is not installed", hint="Install git (Debian: apt-get install git).") from error
            except git.GitCommandError as error:
                said = str(error.stderr).strip() or f"exit status {error.status}"
                raise StorageError(f"git {' '.join(arguments[:3])} failed in {self.path}: {said}", hint="Is the disk full?") from error

    def _read(self, commit: str) -> Tree:
        try:
            listing = self.run("ls-tree", "-r", "-z", "--full-tree", commit)
        except StorageError as error:
            if "not a tree object" in error.message or "Not a valid object name" in error.message:
                raise NotFound(f"there is no commit {commit} in {self.path}", hint="`git log --all` there lists them.") from error
            raise
        entries = []
        for line in filter(None, listing.split(b"\0")):
            about, _, path = line.partition(b"\t")
            mode, _, blob = about.decode().split(" ")
            if mode not in ("100644", "100755"):
                raise InvalidTree(
                    f"{path.decode(errors='replace')} in {commit[:12]} is a link or a submodule", hint="Use plain files only."
                )
            entries.append((path.decode(), mode == "100755", blob))
        blobs = self._blobs([blob for _, _, blob in entries])
        return lfs.without_attributes({path: lfs.file_of(blobs[blob], executable=executable) for path, executable, blob in entries})

    def _blobs(self, identifiers: Sequence[str]) -> dict[str, bytes]:
        """The bytes of blobs, from one ``git cat-file``: a header line, the bytes, a newline, for each."""
        unique = list(dict.fromkeys(identifiers))
        output = self.run("cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in unique).encode()) if unique else b""
        found = {}
        position = 0
        for blob in unique:
            end_of_header = output.index(b"\n", position)
            header = output[position:end_of_header].split(b" ")
            if header[1] != b"blob":
                raise StorageError(f"the object {blob} is missing from {self.path}", hint="Run `git fsck` there; restore it from a clone.")
            start = end_of_header + 1
            position = start + int(header[2]) + 1
            found[blob] = output[start : position - 1]
        return found


def full_ref(name: str) -> str:
    """``refs/heads/<name>`` for a branch; a name that starts with ``refs/`` stays as it is.

    Raises:
        InvalidRequest: not a name git allows.
    """
    full = name if name.startswith("refs/") else f"refs/heads/{name}"
    parts = full.split("/")
    forbidden = re.search(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{", full)
    if forbidden or len(full) > 400 or any(not p or p.startswith(".") or p.endswith((".lock", ".")) for p in parts):
        raise InvalidRequest(f"{name!r} cannot name a branch or tag", hint="Use letters, digits, dot, dash and slash.")
    return full


def _size_bytes(tree: Tree) -> int:
    return sum(len(file.data) for file in tree.values())


def _check_commit(commit: str) -> None:
    if not _HEX.fullmatch(commit):
        raise InvalidRequest(f"{commit!r} is not a commit id", hint="Give all 40 hexadecimal digits.")


def _create(path: Path) -> None:
    """Make the repository beside its place and rename it there: whoever sees the folder sees it whole, and of two creators one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".artifacts-", dir=path.parent))
    try:
        runner = git.Git(building)
        runner.update_environment(**_environment(building))
        for arguments in (
            ("init", "--quiet", "--bare", "--template=", "--object-format=sha1", "--initial-branch=releases/default", str(building)),
            *(("config", key, value) for key, value in _SETTINGS.items()),
        ):
            runner.execute(_command(*arguments), kill_after_timeout=GIT_TIMEOUT_S)
        (building / "info").mkdir(exist_ok=True)
        (building / "info" / "attributes").write_text(_ATTRIBUTES, encoding="ascii")
        building.rename(path)
    except (git.GitCommandError, git.GitCommandNotFound) as error:
        raise StorageError(f"cannot create the artifact repository {path}: {error}", hint="git ≥ 2.31 must be installed.") from error
    except OSError:
        if not (path / "HEAD").exists():  # else another process was first, and its repository is as good
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _command(*arguments: str) -> list[str]:
    stray = [option for name in _STRAY_VARIABLES if name in os.environ for option in ("-u", name)]
    return [*(("env", *stray) if stray else ()), "git", *arguments]


def _environment(path: Path) -> dict[str, str]:
    return {
        "GIT_DIR": str(path),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
    }
