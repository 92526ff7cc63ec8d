"""Recipes that compare attempts at one prompt with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from reef.learner.recipe import Workbench
from reef.learner.weights import WeightOptions, WeightRecipe
from reef.training import batches, batches_groups, batches_reader


class GroupOptions(WeightOptions):
    """``reef.options`` of such recipes."""

    siblings: int = Field(2, ge=2, description="Attempts at one prompt that make a group; more of them are taken too.")


class GroupRecipe(WeightRecipe):
    """A method whose batches are whole groups. It may override :meth:`useful`."""

    Options: ClassVar[type[WeightOptions]] = GroupOptions
    settings: GroupOptions

    def useful(self, rewards: Sequence[float]) -> bool:
        """Whether the rewards of a group's attempts can be learned from: here, where they differ."""
        return batches_groups.differ(rewards)

    def read(self, bench: Workbench, *, terms: batches.Terms) -> batches.Batch:
        waiting = batches_reader.judged(bench.store, bench.scenario, recipe=self.name, grouped=True)
        batch = batches_groups.assemble_groups(
            waiting.rollouts,
            terms=replace(terms, consumed=waiting.consumed),
            size=self.batch_size,
            siblings=self.settings.siblings,
            useful=self.useful,
            full=waiting.full,
        )
        return replace(batch, passed_over=(*waiting.useless, *batch.passed_over))
