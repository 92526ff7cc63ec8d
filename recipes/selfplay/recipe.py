"""The two recipes on the driver's reports."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from cordis.recipe import CordisRecipe
from reef.learner.groups import GroupOptions, GroupRecipe
from reef.learner.weights import Scored


class Told(BaseModel):
    """``metadata`` of the driver's reports."""

    model_config = ConfigDict(extra="allow")

    group: str = Field(min_length=1, max_length=200, description="The task: attempts at one are compared with each other.")


class Played(Scored):
    """A report on an attempt at a task of the system's own."""

    metadata: Told


class SelfPlayHarness(CordisRecipe):
    """Failed attempts become harness candidates. See :class:`cordis.recipe.CordisRecipe` for the options."""

    name = "selfplay"
    report_schema = Played


class SelfPlayWeights(GroupRecipe):
    """Groups of attempts train weights, compared with each other as GRPO does. See :class:`reef.learner.groups.GroupRecipe`."""

    name = "selfplay_weights"
    loss = "grpo"
    Options = GroupOptions
    report_schema = Played
