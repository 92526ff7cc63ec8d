"""What a trainer is asked to do and what it did, in a folder: the trainer is another process, and either may be looked at afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from reef.config import TrainingConfig
from reef.errors import NotFound, NothingLearned, ReefError, StorageError, TrainingError, Unprocessable
from reef.training.sample import Sample, Teacher, TopTokens

JOB, SAMPLES, RESULT, ERROR, LOG = "job.json", "samples.jsonl", "result.json", "error.json", "trainer.log"
_KINDS: dict[str, type[ReefError]] = {"storage": StorageError, "nothing_learned": NothingLearned}
"""What a trainer's error may be to the learner; any other one is a :class:`TrainingError`."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A candidate's weights, and how it went."""

    folder: Path
    """The checkpoint: safetensors, configuration, ``state/`` for the next step, and ``manifest.json`` with the digest of each file."""
    metrics: Mapping[str, float]
    """``loss``, ``grad_norm``, ``kl``, ``tokens``, ``updates``, ``seconds`` and what the loss tells of itself; means over the updates."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many samples were not trained on, by reason."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One candidate to be made. Nothing that it names is written to but :attr:`folder`."""

    folder: Path
    """A folder of its own: job, log, result and checkpoint are written there. A job that is run again goes on where nothing is."""
    base: Path
    """The model in the form of Hugging Face that everything started from."""
    samples: tuple[Sample, ...]
    loss: str
    """Name of a loss in :mod:`reef.training.losses`."""
    settings: TrainingConfig = field(default_factory=TrainingConfig)
    options: Mapping[str, Any] = field(default_factory=dict)
    """The loss's own options; the loss checks them."""
    parent: Path | None = None
    """The checkpoint to start from, as a trainer wrote it, with the state of its optimizer; None: the base."""
    state: Path | None = None
    """The checkpoint whose ``state/`` is taken, where it is not the parent's: of a step in which the critic alone learned."""
    teacher: Path | None = None
    """A model that stays as it is, for distillation from a stronger one; None: the base."""

    @property
    def output(self) -> Path:
        """Where the checkpoint will be: whole, or not at all."""
        return self.folder / "checkpoint"

    def save(self) -> None:
        """Write the job down for the trainer's process, replacing one that was there.

        Raises:
            StorageError: the disk refused.
        """
        about = {
            "base": str(self.base.absolute()),
            "loss": self.loss,
            "settings": self.settings.model_dump(mode="json"),
            "options": dict(self.options),
            **{name: path and str(path.absolute()) for name, path in self._optional().items()},
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _replace(self.folder / SAMPLES, b"".join(orjson.dumps(sample) + b"\n" for sample in self.samples))
            _replace(self.folder / JOB, orjson.dumps(about, option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise StorageError(f"the training job cannot be written to {self.folder}: {error}", hint="Is the disk full?") from error

    @classmethod
    def load(cls, folder: Path) -> TrainingJob:
        """The job of a folder.

        Raises:
            NotFound: there is none.
            Unprocessable: a sample contradicts itself.
        """
        try:
            about = orjson.loads((folder / JOB).read_bytes())
            samples = tuple(_samples(folder / SAMPLES))
        except (OSError, orjson.JSONDecodeError) as error:
            raise NotFound(f"there is no training job in {folder}: {error}", hint="It is written by `reef.training.watch.run`.") from error
        return cls(
            folder=folder,
            base=Path(about["base"]),
            samples=samples,
            loss=about["loss"],
            settings=TrainingConfig.model_validate(about["settings"]),
            options=about["options"],
            **{name: Path(about[name]) if about[name] else None for name in ("parent", "state", "teacher")},
        )

    def _optional(self) -> dict[str, Path | None]:
        return {"parent": self.parent, "state": self.state, "teacher": self.teacher}

    def result(self) -> TrainingResult | None:
        """What came of it; None while there is no checkpoint."""
        if not self.output.is_dir():
            return None
        try:
            told = orjson.loads((self.folder / RESULT).read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            raise StorageError(f"the result of {self.folder} cannot be read: {error}", hint="Delete the folder and train again.") from error
        return TrainingResult(self.output, told["metrics"], told["skipped"])

    def tell(self, result: TrainingResult) -> None:
        """Write the result down; done just before the checkpoint gets its name, so where there is one there is the other."""
        _replace(self.folder / RESULT, orjson.dumps({"metrics": dict(result.metrics), "skipped": dict(result.skipped)}))

    def fail(self, error: ReefError) -> None:
        """Tell whoever waits why there is no checkpoint."""
        kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "")
        told = {"kind": kind, "message": error.message, "hint": error.hint}
        _replace(self.folder / ERROR, orjson.dumps(told))

    def error(self) -> ReefError | None:
        """What the trainer said when it gave up; None where it said nothing."""
        try:
            told = orjson.loads((self.folder / ERROR).read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
        return _KINDS.get(told["kind"], TrainingError)(told["message"], hint=told["hint"])


def _samples(file: Path) -> Iterator[Sample]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield _sample(orjson.loads(line))
            except (TypeError, KeyError) as error:
                raise Unprocessable(f"line {number} of {file} is no sample: {error}") from error


def _sample(told: dict[str, Any]) -> Sample:
    teacher, top = told.pop("teacher"), told.pop("top")
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    return Sample(
        **plain,
        teacher=Teacher(tuple(teacher["tokens"]), tuple(teacher["positions"])) if teacher else None,
        top=TopTokens(*(tuple(tuple(row) for row in top[name]) for name in ("ids", "logprobs"))) if top else None,
    )


def _replace(path: Path, data: bytes) -> None:
    """Write a file whole, so that a reader sees the old or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
