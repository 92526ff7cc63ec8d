"""The recipe of GRPO; the loss is in :mod:`reef.training.losses.grpo`."""

from __future__ import annotations

from pydantic import Field

from reef.learner.groups import GroupOptions, GroupRecipe
from reef.learner.weights import Scored


class GRPOOptions(GroupOptions):
    """``reef.options`` of this recipe."""

    siblings: int = Field(4, ge=2, description="Attempts at one prompt that make a group; more of them are taken too.")


class GRPORecipe(GroupRecipe):
    """See :class:`reef.learner.weights.WeightRecipe`; the options are :class:`GRPOOptions`."""

    name = "grpo"
    loss = "grpo"
    Options = GRPOOptions
    report_schema = Scored
