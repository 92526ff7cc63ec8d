"""Checkpoints in the repository: a trainer's folder becomes a commit, and a commit a folder that trainer and engine read.

Neither way copies weights where the file system can link or reflink. The folder of a commit is made once, is named by its content id, and
is read-only: it may be served and trained from at the same time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from reef.artifacts.folders import Kind, kind_of, lay_out, take_in
from reef.artifacts.repository import NO_COMMIT, ArtifactRepository
from reef.artifacts.tree import content_id
from reef.errors import InvalidTree, StorageError

MAKING_S = 3600.0
"""What was not finished in this time will not be."""
_MAKING = ".making-"


def publish(
    artifacts: ArtifactRepository,
    folder: Path,
    *,
    branch: str,
    parent: str,
    message: str,
    trailers: Mapping[str, object] | None = None,
) -> str:
    """Take a checkpoint in as a commit on a branch of its own, as a proposal needs it. The folder's large files become read-only.

    Args:
        artifacts: where to.
        folder: a checkpoint or a LoRA, as a trainer wrote it.
        branch: a new one.
        parent: the commit it was trained from.
        message: subject and body of the commit.
        trailers: lines for the end of the message.

    Returns:
        The commit.

    Raises:
        InvalidTree: the folder holds neither a checkpoint nor a LoRA.
        Conflict: the branch is there already.
        StorageError: the disk refused.
    """
    tree = take_in(artifacts, folder)
    kind = kind_of(tree)
    if kind not in (Kind.CHECKPOINT, Kind.LORA):
        raise InvalidTree(f"{folder} holds a {kind}, not a checkpoint", hint="Give the folder that the trainer wrote.")
    commit = artifacts.commit(tree, parents=(parent,), message=message, trailers={**(trailers or {}), "Reef-Kind": kind.value})
    artifacts.set_ref(branch, commit, old=NO_COMMIT)
    return commit


def materialise(artifacts: ArtifactRepository, commit: str, *, cache: Path) -> Path:
    """The folder of a commit's checkpoint, read-only, made when it is not there. Processes may ask for the same one at the same time.

    Args:
        artifacts: where the commit is.
        commit: a checkpoint's or a LoRA's.
        cache: folder of such folders, by convention ``<state_dir>/checkpoints``.

    Raises:
        InvalidTree: a large file of it is missing.
        StorageError: the disk refused.
    """
    tree = artifacts.read(commit)
    folder = cache / content_id(tree)
    if folder.is_dir():
        os.utime(folder)  # what was used lately is known by it
        return folder
    artifacts.large.check(tree)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=cache))
        try:
            lay_out(artifacts, tree, making / "whole")
            for path in (making / "whole").rglob("*"):
                path.chmod(0o555 if path.is_dir() else 0o444)
            with contextlib.suppress(OSError):
                (making / "whole").rename(folder)  # fails where another process was first: its folder has the same bytes
                folder.chmod(0o555)  # not before: a folder that cannot be written to cannot get another parent
        finally:
            _remove(making)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"the checkpoint {commit[:12]} cannot be laid out in {cache}: {error}", hint="Is the disk full?") from error
    if not folder.is_dir():
        raise StorageError(f"the checkpoint {commit[:12]} cannot be laid out in {cache}", hint="May the folder be written to?")
    return folder


def drop(cache: Path, *, keep: Collection[str]) -> list[str]:
    """Remove folders of the cache, and what crashed processes were making there; the repository has the bytes still.

    Args:
        cache: as in :func:`materialise`.
        keep: content ids whose folders stay: of what serves, is staged or is trained from.

    Returns:
        The content ids whose folders were removed.
    """
    too_old = time.time() - MAKING_S
    gone = [folder for folder in sorted(cache.glob("*")) if folder.is_dir() and folder.name not in keep]
    gone = [folder for folder in gone if not folder.name.startswith(_MAKING) or folder.stat().st_mtime < too_old]
    for folder in gone:
        _remove(folder)
    return [folder.name for folder in gone if not folder.name.startswith(_MAKING)]


def _remove(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
