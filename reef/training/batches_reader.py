"""Batches out of the experience: a recipe's unconsumed reports, oldest first, with the records that they judge."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from reef.experience.store import ExperienceStore
from reef.training.batches import Batch, Rollout, Terms, assemble
from reef.types import Record, Report

WINDOW = 1000
"""Reports looked at for one batch."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The attempts that a recipe has not consumed."""

    rollouts: Iterator[Rollout]
    """One after the other, as they are asked for: a batch that is full reads no more."""
    useless: tuple[str, ...]
    """Reports to be passed over: they judge nothing."""
    consumed: set[str]
    """For :attr:`Terms.consumed`; gets the receipts of an attempt's records that were trained on before, ahead of the attempt."""
    full: bool
    """Whether there may be more than were looked at."""


def has_score(report: Report) -> bool:
    """Whether a report judges by a number."""
    return report.score is not None


def judged(
    store: ExperienceStore,
    scenario: str,
    *,
    recipe: str,
    grouped: bool = False,
    wanted: Callable[[Report], bool] = has_score,
    window: int = WINDOW,
) -> Judged:
    """The attempts, by the reports on them. Reports that quote the same records are one judgement, and the newest score counts.

    Args:
        grouped: whether attempts at one prompt have to stand together. What the prompt is, ``group`` in a report's metadata says, or else
            the tokens of the first prompt.
        wanted: which reports say something to the recipe.
        window: how many reports are looked at.
    """
    reports = store.unconsumed_reports(scenario, recipe, limit=window)
    judgements: dict[tuple[str, ...], list[Report]] = {}
    useless = []
    for report in reports:
        if not report.references or not wanted(report):
            useless.append(report.id)
        else:
            judgements.setdefault(report.references, []).append(report)
    consumed: set[str] = set()
    rollouts = _rollouts(store, judgements.values(), recipe=recipe, grouped=grouped, consumed=consumed)
    return Judged(rollouts, tuple(useless), consumed, full=len(reports) >= window)


def read(
    store: ExperienceStore,
    scenario: str,
    *,
    recipe: str,
    terms: Terms,
    size: int,
    grouped: bool = False,
    wanted: Callable[[Report], bool] = has_score,
    window: int = WINDOW,
) -> Batch:
    """The next batch of a recipe. Nothing is consumed: the settlement does that, with :attr:`Batch.reports` and :attr:`Batch.passed_over`.

    A report that is not wanted is passed over, and so is one whose records are all gone. See :func:`judged`.

    Args:
        terms: what may train; records that the recipe has trained on before are added.
        size: how many attempts make a step.
    """
    found = judged(store, scenario, recipe=recipe, grouped=grouped, wanted=wanted, window=window)
    found.consumed.update(terms.consumed)
    batch = assemble(found.rollouts, terms=replace(terms, consumed=found.consumed), size=size)
    return replace(batch, passed_over=(*found.useless, *batch.passed_over))


def _rollouts(
    store: ExperienceStore, judgements: Iterable[Sequence[Report]], *, recipe: str, grouped: bool, consumed: set[str]
) -> Iterator[Rollout]:
    """One after the other, as they are asked for: a batch that is full reads no more.

    Args:
        consumed: gets the receipts of an attempt's records that were trained on before, ahead of the attempt.
    """
    for same in judgements:
        consumed |= store.learned_from(same[0].id, recipe=recipe)
        records = tuple(store.report_records(same[0].id))
        yield Rollout(
            name=same[-1].id,
            records=records,
            reward=same[-1].score,
            group=_group(same[-1], records) if grouped else "",
            reports=tuple(report.id for report in same),
        )


def _group(report: Report, records: Sequence[Record]) -> str:
    """What the attempts at one prompt have in common."""
    named = report.metadata.get("group")
    if isinstance(named, str) and named:
        return named
    first = next((record.tokens for record in records if record.tokens is not None), None)
    return hashlib.sha256(array("I", first.prompt_ids).tobytes()).hexdigest() if first else report.id
