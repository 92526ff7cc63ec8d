"""The recipe of both surfaces: it holds a recipe for each, and the learner gives each its turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reef import plugins
from reef.errors import ConfigError, PluginError
from reef.learner.recipe import Attempt, Batch, Proposal, Recipe, Selection, Workbench
from reef.types import Component, Release

PARTS = {"harness": Component.HARNESS, "weights": Component.MODEL}


class Part(BaseModel):
    """One of the two."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str = Field(min_length=1, description="Name in `reef.recipes`, or a dotted name.")
    batch_size: int | None = Field(None, ge=1, description="Reports that make a step of it. Empty: `reef.batch_size`.")
    options: dict[str, Any] = Field(default_factory=dict, description="Its own options.")


class Options(BaseModel):
    """``reef.options`` of this recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    harness: Part = Field(Part(recipe="cordis"), description="What changes the harness.")
    weights: Part = Field(Part(recipe="sft"), description="What trains weights.")


class BothRecipe(Recipe):
    """See :class:`reef.learner.recipe.Recipe`; the options are :class:`Options`. Reports may be of any form: a part takes what it can use.

    Raises:
        ConfigError: an option is unknown or out of bounds, or a part is no recipe for what it is to change.
    """

    name = "both"
    needs_tokens = True

    def __init__(self, *, batch_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(batch_size=batch_size, options=options)
        try:
            told = Options.model_validate(dict(options))
        except ValidationError as error:
            problem = error.errors()[0]
            raise ConfigError(
                f"reef.options.{'.'.join(map(str, problem['loc']))}: {problem['msg']}",
                hint=f"Known: {', '.join(PARTS)}, and in each of them {', '.join(Part.model_fields)}.",
            ) from None
        self._parts = tuple(_made(place, getattr(told, place), batch_size=batch_size) for place in PARTS)

    @property
    def parts(self) -> Sequence[Recipe]:
        return self._parts

    def select(self, bench: Workbench) -> Selection:
        raise AssertionError("its parts select")

    def propose(self, batch: Batch, *, parent: Release, earlier: Sequence[Attempt], bench: Workbench) -> Proposal:
        raise AssertionError("its parts propose")


def _made(place: str, told: Part, *, batch_size: int) -> Recipe:
    """The recipe of a part."""
    try:
        kind = plugins.load("reef.recipes", told.recipe)
    except PluginError as error:
        raise ConfigError(f"reef.options.{place}.recipe: {error.message}", hint=error.hint) from error
    if not (isinstance(kind, type) and issubclass(kind, Recipe) and getattr(kind, "component", None) is PARTS[place]):
        raise ConfigError(
            f"reef.options.{place}.recipe: {told.recipe} is no recipe for the component {PARTS[place]}",
            hint="For the harness there are cordis and selfplay; for weights sft, sdft, sao, grpo and others.",
        )
    try:
        return kind(batch_size=told.batch_size or batch_size, options=told.options)
    except ConfigError as error:  # it takes itself for the only one
        raise ConfigError(error.message.replace("reef.options", f"reef.options.{place}.options", 1), hint=error.hint) from error
