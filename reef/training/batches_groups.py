"""Batches of groups: the attempts at one prompt that traffic made. A group is taken whole, once it is large enough and says something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from reef.training.batches import LATER, Batch, Made, Rollout, Terms, make

Rewards = Sequence[float]


def differ(rewards: Rewards) -> bool:
    """Whether some attempts are better than others: equal rewards carry no signal."""
    return len(set(rewards)) > 1


def assemble_groups(
    rollouts: Iterable[Rollout], *, terms: Terms, size: int, siblings: int, useful: Callable[[Rewards], bool] = differ, full: bool = False
) -> Batch:
    """Groups of at least ``siblings`` attempts, those that began first, until there are ``size`` attempts or more.

    A group that is large enough and not useful is passed over. One that is too small waits, and so do attempts that are not needed.

    Args:
        rollouts: each with a group.
        useful: whether the rewards of a group's attempts can be learned from.
        full: whether more reports wait than could be looked at. Then, where no batch comes of it, the older half of those that wait for
            siblings is passed over: they would hide younger ones for ever.
    """
    skipped: Counter[str] = Counter()
    passed_over: list[str] = []
    seen: set[str] = set()
    groups: dict[str, list[Made]] = {}
    for rollout in rollouts:
        found = make(rollout, terms=terms, seen=seen)
        skipped += found.skipped
        if found.samples:
            groups.setdefault(rollout.group, []).append(found)
        elif not LATER & found.skipped.keys():
            passed_over += rollout.reports
    chosen: list[Made] = []
    small: list[Made] = []
    for attempts in groups.values():
        if len(attempts) < siblings:
            small += attempts
            skipped["few_siblings"] += _records(attempts)
        elif not useful([each.rollout.reward for each in attempts if each.rollout.reward is not None]):
            passed_over += _reports(attempts)
            skipped["no_signal"] += _records(attempts)
        elif len(chosen) < size:
            chosen += attempts
        else:
            skipped["not_needed"] += _records(attempts)
    if full and len(chosen) < size:
        passed_over += _reports(small[: (len(small) + 1) // 2])
    return Batch(
        samples=tuple(sample for each in chosen for sample in each.samples),
        rollouts=len(chosen),
        skipped=skipped,
        lags=sum((each.lags for each in chosen), Counter[int]()),
        reports=tuple(_reports(chosen)),
        passed_over=tuple(passed_over),
    )


def _reports(attempts: Iterable[Made]) -> list[str]:
    return [report for each in attempts for report in each.rollout.reports]


def _records(attempts: Iterable[Made]) -> int:
    return sum(len(sample.records) for each in attempts for sample in each.samples)
