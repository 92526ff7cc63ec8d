"""A checkpoint on the disk: written beside its place, flushed and then renamed, with the digest of every file. No pickle anywhere."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson

from reef.errors import StorageError
from reef.failpoints import reach
from reef.training.job import TrainingJob, TrainingResult

MANIFEST = "manifest.json"
STATE = "state"
"""Folder of a checkpoint that is for the next step of training only; an engine reads the files beside it."""


def write(job: TrainingJob, fill: Callable[[Path], object], *, metrics: Mapping[str, float], skipped: Mapping[str, int]) -> TrainingResult:
    """Make ``job.output``.

    Args:
        job: whose checkpoint it is.
        fill: writes the files into the folder that it gets.
        metrics: of the result.
        skipped: of the result.

    Raises:
        StorageError: the disk refused; nothing is left of the attempt.
    """
    temporary = job.folder / f".checkpoint.{os.getpid()}"
    sweep(job)
    try:
        temporary.mkdir(parents=True)
        fill(temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        digests = {path.relative_to(temporary).as_posix(): _flushed(path) for path in files}
        manifest = temporary / MANIFEST
        manifest.write_bytes(orjson.dumps({"files": digests}, option=orjson.OPT_INDENT_2))
        _flushed(manifest)
        for folder in (*(path for path in temporary.rglob("*") if path.is_dir()), temporary):
            _sync(folder)
        result = TrainingResult(job.output, metrics, skipped)
        job.tell(result)
        reach("checkpoint.written")
        temporary.rename(job.output)
        _sync(job.folder)
        reach("checkpoint.placed")
    except Exception as error:
        if not _of_the_disk(error):
            raise
        raise StorageError(f"the checkpoint cannot be written to {job.folder}: {error}", hint="Is the disk full?") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return result


def sweep(job: TrainingJob) -> None:
    """Remove what a trainer of this job left that was killed."""
    for left in job.folder.glob(".checkpoint.*"):
        shutil.rmtree(left, ignore_errors=True)


def problems(folder: Path) -> list[str]:
    """What of a checkpoint is not as it was written; reads every byte."""
    try:
        digests: dict[str, str] = orjson.loads((folder / MANIFEST).read_bytes())["files"]
    except (OSError, orjson.JSONDecodeError, KeyError) as error:
        return [f"{MANIFEST} cannot be read: {error}"]
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST}
    wrong = [f"{name} is missing" for name in sorted(digests.keys() - found.keys())]
    wrong += [f"{name} was added" for name in sorted(found.keys() - digests.keys())]
    return wrong + [f"{name} was changed" for name in sorted(digests.keys() & found.keys()) if _digest(found[name]) != digests[name]]


def is_lora(folder: Path) -> bool:
    """Whether a checkpoint is a LoRA, not a whole model."""
    return (folder / "adapter_config.json").is_file()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flushed(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _digest(path)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _of_the_disk(error: Exception) -> bool:
    """Whether the disk refused. Safetensors tells of it by an error of its own, with the system's words."""
    return isinstance(error, OSError) or (type(error).__name__ == "SafetensorError" and "os error" in str(error))
