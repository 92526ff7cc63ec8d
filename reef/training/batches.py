"""Samples of token-exact records: what may train, what is left out and why. Pure functions on records; the store is read in
:mod:`reef.training.batches_reader`.

Every record that comes in is either in a sample or counted in :attr:`Batch.skipped`; none vanishes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from reef.training.batches_merge import Strand, merge
from reef.training.sample import Sample
from reef.types import End, Record, TokenTrace

RARE = -1e30
"""A log-probability below it was minus infinity once: the engine says so of a token that its own sampling excludes."""
ROUNDING = 1e-3
"""A log-probability this little above zero is a rounding error; more is not a log-probability."""

LATER = frozenset({"ahead", "duplicate", "not_needed"})
"""Reasons that may no longer hold at the next step; all others hold for good."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt: the records of an agent's run that were judged together, oldest first."""

    name: str
    records: tuple[Record, ...]
    reward: float | None
    group: str = ""
    """The attempts at one prompt share one."""
    reports: tuple[str, ...] = ()
    """Those that judged it."""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step trains on, and what became of everything that was offered for it."""

    samples: tuple[Sample, ...]
    rollouts: int
    """How many attempts the samples are of."""
    skipped: Counter[str]
    """Records that are in no sample, by reason."""
    lags: Counter[int]
    """Records in the samples, by how many releases they are older than the parent; −1: it is not known."""
    reports: tuple[str, ...] = ()
    """To be consumed with the step: something they judged is in a sample."""
    passed_over: tuple[str, ...] = ()
    """To be consumed without one: nothing they judged can ever train."""

    @property
    def records(self) -> tuple[str, ...]:
        """The receipts of all records in the samples."""
        return tuple(record for sample in self.samples for record in sample.records)

    @property
    def used_share(self) -> float:
        """Records in samples beside all that were offered and could have been needed; 0 where there were none."""
        used = len(self.records)
        offered = used + sum(count for reason, count in self.skipped.items() if reason != "not_needed")
        return used / offered if offered else 0.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What may train."""

    parent: int
    """The step of the release that is trained from."""
    max_staleness: int
    """How many releases older a record may be."""
    consumed: Collection[str] = frozenset()
    """Receipts of records that the recipe has trained on before."""
    max_tokens: int | None = None
    """Of one sequence; a turn that would end beyond it is left out. None: no bound."""
    together: bool = True
    """Whether turns that extend each other are one sample."""
    withheld: Collection[str] = frozenset()
    """Sessions that held-out tasks were captured from: what is tested on must not be learned."""

    def why_not(self, record: Record) -> str:
        """Why a record cannot train, in a word; empty where it can."""
        if record.id in self.consumed:
            return "consumed"
        if record.session in self.withheld:
            return "withheld"
        if record.end is not End.COMPLETE:
            return f"end_{record.end.value}"
        if record.tokens is None:
            return "no_tokens"
        served = [by for _, by in spans(record)]
        if any(isinstance(by, str) for by in served):
            return "candidate"
        stale = (self._staleness(by) for by in served if not isinstance(by, str))
        return self._untrainable(record.tokens) or next(filter(None, stale), "")

    def _untrainable(self, trace: TokenTrace) -> str:
        if not trace.completion_ids:
            return "empty_mask"
        if not trace.prompt_ids or len(trace.completion_ids) != len(trace.logprobs):
            return "invalid"
        if not all(RARE < value <= ROUNDING for value in trace.logprobs):
            return "not_finite"
        too_long = self.max_tokens is not None and len(trace.prompt_ids) + len(trace.completion_ids) > self.max_tokens
        return "too_long" if too_long else ""

    def _staleness(self, release: int | None) -> str:
        """``stale``, ``ahead`` or ``unknown_release``; empty where it is the parent or shortly before it."""
        if release is None:
            return "unknown_release" if self.parent - 1 > self.max_staleness else ""  # with the first release in reach, any is
        if release > self.parent:
            return "ahead"
        return "stale" if self.parent - release > self.max_staleness else ""


def served_by(record: Record) -> int | str | None:
    """What generated a record: the step of a release, the id of a candidate, or None where nothing says so.

    The engine's word comes first: a LoRA is served as ``<scenario>.<step>``, a candidate's as ``<scenario>.<candidate>``, and that name
    stands in the answer. Without such a name what the client said it was running stands for it.
    """
    told = record.response.get("model") if isinstance(record.response, dict) else None
    for name in (told, record.model):
        if (served := _named(name, record.scenario)) is not None:
            return served
    return record.candidate or record.release


def spans(record: Record) -> list[tuple[int, int | str | None]]:
    """What generated which of a record's tokens, as :func:`served_by` says it, each with the index of its first; in nearly all it is one.

    Where a swap fell into the answer, the engine named what served from there on; what the client said is about the beginning alone.
    """
    trace = record.tokens
    if trace is None or not trace.served:
        return [(0, served_by(record))]
    told = [(start, _named(name, record.scenario)) for start, name in zip(trace.starts, trace.served, strict=True)]
    if told[0][1] is None:
        told[0] = (0, record.candidate or record.release)
    return told


def served_release(record: Record) -> int | None:
    """The release that generated a record, of several the oldest; None where nothing says so, and where it was a candidate."""
    oldest: int | None = None
    for _, by in spans(record):
        if not isinstance(by, int):
            return None
        oldest = by if oldest is None else min(oldest, by)
    return oldest


def _named(name: object, scenario: str) -> int | str | None:
    """The release or candidate of a scenario that a name of weights stands for; None for another's, and for a model's own."""
    whose, _, served = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    if whose != scenario:
        return None
    return int(served) if served.isascii() and served.isdecimal() else served


def assemble(rollouts: Iterable[Rollout], *, terms: Terms, size: int) -> Batch:
    """A batch of ``size`` attempts, or of fewer where there are no more: those of which nothing can train are replaced by the next.

    Once it is full, it ends; but attempts of a group that is in it are looked for still, so that none is judged without its siblings.

    Args:
        rollouts: in the order in which they are wanted; not asked for more of them than it takes.
    """
    made: list[Made] = []
    skipped: Counter[str] = Counter()
    passed_over: list[str] = []
    seen: set[str] = set()
    groups: set[str] = set()
    for rollout in rollouts:
        if len(made) >= size and rollout.group not in groups:
            skipped["not_needed"] += len(rollout.records)
            continue
        found = make(rollout, terms=terms, seen=seen)
        skipped += found.skipped
        if found.samples:
            made.append(found)
            groups |= {rollout.group} - {""}
        elif not LATER & found.skipped.keys():
            passed_over += rollout.reports
        if len(made) >= size and not groups:
            break
    return Batch(
        samples=tuple(sample for each in made for sample in each.samples),
        rollouts=len(made),
        skipped=skipped,
        lags=sum((each.lags for each in made), Counter[int]()),
        reports=tuple(report for each in made for report in each.rollout.reports),
        passed_over=tuple(passed_over),
    )


@dataclass(frozen=True, slots=True)
class Made:
    """What became of one attempt."""

    rollout: Rollout
    samples: tuple[Sample, ...]
    skipped: Counter[str]
    """Of its records, by reason."""
    lags: Counter[int]


def make(rollout: Rollout, *, terms: Terms, seen: set[str] | None = None) -> Made:
    """The samples of one attempt.

    A record that may not train is context in the sequence of those that go on from it, as far as their prompts repeat it.

    Args:
        seen: receipts that were looked at before, for this batch; those of the attempt are added.
    """
    seen = set() if seen is None else seen
    skipped: Counter[str] = Counter()
    kept = []
    for record in rollout.records:
        reason = "duplicate" if record.id in seen else terms.why_not(record)
        if not reason and rollout.reward is not None and not math.isfinite(rollout.reward):
            reason = "not_finite"
        seen.add(record.id)
        if reason:
            skipped[reason] += 1
        else:
            kept.append(record)
    samples = tuple(_sample(strand, rollout) for strand in merge(kept, together=terms.together))
    releases = map(served_release, kept)
    return Made(rollout, samples, skipped, Counter(-1 if release is None else terms.parent - release for release in releases))


def _sample(strand: Strand, rollout: Rollout) -> Sample:
    size = len(strand.tokens)
    mask, old = [False] * size, [0.0] * size
    releases: list[int | None] = [None] * size
    for turn in strand.turns:
        span, length = slice(turn.start, turn.stop), turn.stop - turn.start
        mask[span] = [True] * length
        old[span] = [min(value, 0.0) for value in turn.logprobs]
        for first, by in spans(turn.record):
            releases[turn.start + first : turn.stop] = [by if isinstance(by, int) else None] * (length - first)
    return Sample(
        tokens=strand.tokens,
        mask=tuple(mask),
        old_logprobs=tuple(old),
        releases=tuple(releases),
        reward=rollout.reward,
        group=rollout.group,
        rollout=rollout.name,
        records=tuple(turn.record.id for turn in strand.turns),
        weight=rollout.weight,
        session=strand.turns[0].record.session,
    )
