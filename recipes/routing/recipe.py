"""``routing``: reports on sessions become a routing policy."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipes.routing.ridge import fit
from reef.artifacts.tree import content_id
from reef.errors import ConfigError, ProposalError
from reef.evaluation.off_policy import Draw
from reef.learner import draws
from reef.learner.recipe import Attempt, Batch, Proposal, Recipe, Selection, Workbench
from reef.learner.routing_judge import halves
from reef.releases import mirror
from reef.serving.choosing import FEATURES, Choice
from reef.serving.policy import FILE, Policy
from reef.types import Component, File, Release, Report

log = structlog.get_logger()

WINDOW = 500
"""Reports looked at for a batch at once."""


class Options(BaseModel):
    """``reef.options`` of this recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    explore: float = Field(0.2, ge=0.01, le=1, description="Share of the sessions that a proposed policy spreads over all arms.")
    penalty: float = Field(1.0, gt=0, le=1000, description="How many sessions the belief that features do not matter weighs.")
    history: int = Field(1000, ge=0, le=20_000, description="The newest older reports that are learned from once more.")


class RoutingRecipe(Recipe):
    """See :class:`reef.learner.recipe.Recipe`; the options are :class:`Options`.

    Raises:
        ConfigError: an option is unknown or out of bounds.
    """

    name = "routing"
    component = Component.ROUTING

    def __init__(self, *, batch_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(batch_size=max(2, batch_size), options=options)
        try:
            self._options = Options.model_validate(dict(options))
        except ValidationError as error:
            problem = error.errors()[0]
            known = ", ".join(Options.model_fields)
            raise ConfigError(f"reef.options.{'.'.join(map(str, problem['loc']))}: {problem['msg']}", hint=f"Known: {known}.") from None

    def select(self, bench: Workbench) -> Selection:
        """The oldest reports on sessions that the policy which serves now has drawn. Others say nothing about it."""
        waiting = bench.store.unconsumed_reports(bench.scenario, self.name, limit=max(WINDOW, 2 * self.batch_size))
        if len(waiting) < self.batch_size:
            return Selection()
        policies = draws.served(bench.chain(), bench.artifacts)
        useful: list[Report] = []
        useless: list[str] = []
        for report in waiting:
            if len(useful) == self.batch_size:
                break
            if draws.draw(report, store=bench.store, policies=policies[-1:]) is not None:
                useful.append(report)
            else:
                useless.append(report.id)
        return Selection(Batch(tuple(useful)) if len(useful) == self.batch_size else None, passed_over=tuple(useless))

    def propose(self, batch: Batch, *, parent: Release, earlier: Sequence[Attempt], bench: Workbench) -> Proposal:
        policy = draws.head_policy(parent, bench.artifacts)
        if policy is None or policy.choose is None:
            raise ProposalError("the head has no policy with `choose`", hint="Release one: `reef release import DIR`.")
        learned = self._learn(policy.choose, self._known(batch, bench))
        reports = tuple(report.id for report in batch.reports)
        salt = hashlib.sha256("\n".join(reports).encode()).hexdigest()[:16]
        data = policy.model_dump() | {"choose": learned.model_copy(update={"salt": salt}).model_dump()}
        tree = {FILE: File(yaml.safe_dump(Policy.model_validate(data).model_dump(mode="json"), sort_keys=False).encode())}
        summary = f"Route by {len(halves(reports)[0])} more sessions"
        branch = mirror.candidate_branch(bench.scenario, f"routing-{salt[:8]}-{len(earlier)}")
        trailers = {
            "Reef-Scenario": bench.scenario,
            "Reef-Recipe": self.name,
            "Reef-Base-Step": parent.step,
            "Reef-Content-Id": content_id(tree),
        }
        return Proposal(branch=branch, commit=bench.artifacts.commit(tree, message=summary, trailers=trailers), summary=summary)

    def _known(self, batch: Batch, bench: Workbench) -> list[Draw]:
        """Draws of the first half of the batch and of what came before it; never of what judges."""
        mine, _ = halves(tuple(report.id for report in batch.reports))
        first = batch.reports[0].created_at
        older = bench.store.reports(bench.scenario, limit=self._options.history + WINDOW) if self._options.history else []
        older = [report for report in older if report.created_at < first][: self._options.history]
        policies = draws.served(bench.chain(), bench.artifacts)
        reports = [*older, *batch.reports[: len(mine)]]
        return [found[0] for report in reports if (found := draws.draw(report, store=bench.store, policies=policies)) is not None]

    def _learn(self, choice: Choice, known: Sequence[Draw]) -> Choice:
        """The choice with weights that were fitted to what is known."""
        usable = [one for one in known if one.arm in choice.arms]
        if not usable:
            raise ProposalError("no session to learn from", hint="They need a name (x-reef-session), a report and no model of their own.")
        rewards = [one.reward(choice) for one in usable]
        centre = sum(rewards) / len(rewards)  # an arm that nothing is known of is as good as all of them
        log.info("learning a choice", sessions=dict(Counter(one.arm for one in usable)), mean=centre)
        arms = {}
        for name, arm in choice.arms.items():
            samples = [(one.features, reward) for one, reward in zip(usable, rewards, strict=True) if one.arm == name]
            weights = fit(samples, penalty=self._options.penalty, width=len(FEATURES), centre=centre)
            arms[name] = arm.model_copy(update={"weights": tuple(round(weight, 6) for weight in weights)})
        return choice.model_copy(update={"arms": arms, "explore": self._options.explore})
