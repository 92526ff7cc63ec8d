"""Judging a routing policy before it serves anybody: by what it would have earned in sessions that the head drew."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from reef.config import Config
from reef.errors import InvalidTree
from reef.evaluation.off_policy import judge
from reef.evaluation.verdicts import undecided
from reef.experience.store import ExperienceStore
from reef.learner import draws
from reef.releases.controller import Controller
from reef.serving import policy
from reef.types import Candidate, Release, Tree, Verdict


class RoutingJudge:
    """Implements :class:`reef.learner.loop.Judge` for routing policies.

    Of a candidate's reports the second half is what it is judged by: its recipe made it from the first (:func:`halves`).
    """

    def __init__(self, *, config: Config, controller: Controller, store: ExperienceStore) -> None:
        self._config = config
        self._controller = controller
        self._store = store

    def admit(self, tree: Tree, *, base: Tree) -> None:
        """A policy whose targets are upstreams that there are."""
        choice = policy.read(tree).choose
        if choice is None:
            return
        known = self._config.named_upstreams
        for arm in choice.arms:
            if arm.partition("/")[0] not in known:
                raise InvalidTree(f"the arm {arm} is at no upstream", hint=f"There are: {', '.join(known) or 'none'}.")

    def judge(self, candidate: Candidate, *, tree: Tree, head: Release, head_tree: Tree, progress: Callable[[str], None]) -> Verdict:
        began = time.monotonic()
        proposed, serving = policy.read(tree), draws.head_policy(head, self._controller.artifacts)
        if proposed.choose is None or serving is None or serving.choose is None:
            return undecided("nothing tells how the other upstreams would have done: to try them is a person's decision (`reef promote`)")
        if proposed.choose.arms.keys() != serving.choose.arms.keys():
            return undecided("it has other arms than the head, and nothing tells how they would have done (`reef promote`)")
        serves = draws.served(self._controller.releases(candidate.scenario), self._controller.artifacts)[-1:]
        _, confirm = halves(candidate.reports)
        progress(f"what it would have earned in {len(confirm)} sessions")
        found = (draws.draw(self._store.report(report), store=self._store, policies=serves) for report in confirm)
        usable = [one[0] for one in found if one is not None]
        if not usable:
            return undecided("none of its sessions was drawn by the policy that serves now")
        verdict = judge(
            usable,
            candidate=proposed.choose,
            head=serving.choose,
            alpha=self._config.evaluation.alpha,
            spent=self._controller.spent(candidate.scenario, excluding=candidate.id),
            min_effect=self._config.evaluation.min_effect,
        )
        return replace(verdict, seconds=time.monotonic() - began)


def halves(reports: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of a batch: what a policy is made from, and what it is judged by."""
    middle = len(reports) // 2
    return reports[:middle], reports[middle:]
