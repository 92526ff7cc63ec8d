"""The recipe of TTT-Discover; the loss is in :mod:`reef.training.losses.ttt_discover`."""

from __future__ import annotations

from pydantic import Field

from reef.learner.groups import GroupOptions, GroupRecipe
from reef.learner.weights import Scored


class Options(GroupOptions):
    """``reef.options`` of this recipe."""

    siblings: int = Field(8, ge=2, description="Attempts from one starting point that make a group; more of them are taken too.")


class TTTDiscoverRecipe(GroupRecipe):
    """See :class:`reef.learner.weights.WeightRecipe`; the options are :class:`Options`."""

    name = "ttt_discover"
    loss = "ttt_discover"
    Options = Options
    report_schema = Scored
