"""One step of training: the job of a batch, run in a process of its own, and its checkpoint published as a branch.

Nothing here is lost by a crash but time. The same batch on the same parent is the same job in the same folder, so what was trained before a
crash is not trained again; and a checkpoint is in the repository whole or not at all.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from reef.artifacts import checkpoints
from reef.artifacts.repository import ArtifactRepository, full_ref
from reef.errors import NothingLearned, ProposalError
from reef.learner.ground import TrainingGround
from reef.learner.recipe import Proposal, Unreleased, Workbench
from reef.training import watch
from reef.training.job import TrainingJob, TrainingResult
from reef.training.sample import Sample
from reef.types import Component, Content, Release

KEPT = "parents"
"""Folder, among those of jobs, of the checkpoints that are trained from: of the head, and of a state that no release has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a recipe wants trained."""

    recipe: str
    loss: str
    options: Mapping[str, Any]
    """The loss's own; the loss checks them."""
    samples: tuple[Sample, ...]
    teacher: Path | None = None
    told: str = ""
    """The batch, for people."""


def train(step: Step, *, parent: Release, bench: Workbench, ground: TrainingGround) -> Proposal | Unreleased:
    """Make a candidate of a batch, from the parent's weights and the optimizer's state that stands with them.

    The parent of a scenario that has no weights of its own is the base model.

    Returns:
        The candidate; or, where the critic alone learned, what is kept of that for the next step.

    Raises:
        ProposalError: nothing can be learned from the batch.
        TrainingError: the trainer crashed, was ended, or is not set up; the same step may be tried again.
        StorageError: the disk refused.
    """
    model = parent.components.get(Component.MODEL.value)
    folder = ground.jobs / bench.scenario / _name(step, model=model, ground=ground)
    _sweep(folder)
    parents = _laid_out(bench, model=model, cache=folder.parent / KEPT)
    job = TrainingJob(
        folder=folder,
        base=ground.base(),
        samples=step.samples,
        loss=step.loss,
        settings=ground.settings,
        options=step.options,
        parent=parents.get("parent"),
        state=parents.get("state"),
        teacher=step.teacher,
    )
    try:
        result = watch.run(job, timeout_s=ground.settings.timeout_s, stop=ground.stop)
    except NothingLearned as error:
        watch.discard(job)
        raise ProposalError(f"{step.recipe}: {error.message}", hint=error.hint) from error
    made = _publish(step, result, parent=parent, model=model, bench=bench)
    watch.discard(job)
    return made


def _publish(step: Step, result: TrainingResult, *, parent: Release, model: Content | None, bench: Workbench) -> Proposal | Unreleased:
    moved = bool(result.metrics.get("updates"))
    summary = f"{step.recipe}: {_progress(result) if moved else 'the critic alone learned'}, from {step.told or 'a batch'}"
    place = f"candidates/{bench.scenario}" if moved else _state_branches(bench, step.recipe)
    branch = f"{place}/{secrets.token_hex(4)}"
    commit = checkpoints.publish(
        bench.artifacts,
        result.folder,
        branch=branch,
        parent=model.commit if model else parent.commit,
        message=f"{summary}\n\n{_figures(result)}",
        trailers={"Reef-Scenario": bench.scenario, "Reef-Base": parent.step, "Reef-Recipe": step.recipe},
    )
    if moved:
        return Proposal(branch=branch, commit=commit, summary=summary)
    _forget(bench.artifacts, _state_branches(bench, step.recipe), keep=(commit, str(bench.state.get("commit"))))
    return Unreleased(summary, {"commit": commit, "of": model.content_id if model else ""})


def _laid_out(bench: Workbench, *, model: Content | None, cache: Path) -> dict[str, Path]:
    """What is trained from: the parent's checkpoint, and the state of a step before that made no candidate of the same weights."""
    commits = {"parent": model.commit} if model else {}
    kept = bench.state.get("commit")
    if isinstance(kept, str) and bench.state.get("of") == (model.content_id if model else ""):
        commits["state"] = kept
    found = {name: checkpoints.materialise(bench.artifacts, commit, cache=cache) for name, commit in commits.items()}
    checkpoints.drop(cache, keep=[folder.name for folder in found.values()])
    return found


def _state_branches(bench: Workbench, recipe: str) -> str:
    """Not among those of candidates, which `reef gc` collects when they came to nothing."""
    return f"training/{bench.scenario}/{recipe}"


def _forget(artifacts: ArtifactRepository, place: str, *, keep: tuple[str, ...]) -> None:
    """Delete branches of states before the last two: the one that is in the database still, and the one that is about to be."""
    prefix = full_ref(place) + "/"
    artifacts.delete_refs({ref: commit for ref, commit in artifacts.refs().items() if ref.startswith(prefix) and commit not in keep})


def _name(step: Step, *, model: Content | None, ground: TrainingGround) -> str:
    """Of a job's folder: equal for equal jobs."""
    about = [step.recipe, step.loss, dict(step.options), model and model.content_id, ground.model, str(step.teacher)]
    digest = hashlib.sha256(orjson.dumps([about, ground.settings.model_dump(mode="json")], option=orjson.OPT_SORT_KEYS))
    for sample in step.samples:
        digest.update(orjson.dumps(sample))
    return digest.hexdigest()[:32]


def _sweep(folder: Path) -> None:
    """Remove what steps before left that will not come again: the head has moved, or the batch is another one."""
    for left in folder.parent.glob("*"):
        if left not in (folder, folder.parent / KEPT):
            shutil.rmtree(left, ignore_errors=True)


def _progress(result: TrainingResult) -> str:
    metrics = result.metrics
    parts = [f"loss {metrics['loss']:+.4f}"] if "loss" in metrics else []
    parts += [f"{metrics['tokens']:.0f} tokens"] if "tokens" in metrics else []
    parts += [f"{count} {reason}" for reason, count in sorted(result.skipped.items())]
    return ", ".join(parts) or "trained"


def _figures(result: TrainingResult) -> str:
    return "\n".join(f"{name}: {value:.6g}" for name, value in sorted(result.metrics.items()))
