"""Harness and weights of one scenario both move: Cordis asks the rehearsal model, a trainer makes LoRAs, and one chain names both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from cordis.recipe import CordisRecipe
from recipes.both.recipe import BothRecipe
from recipes.sft.recipe import SFTRecipe
from reef import config as configuration
from reef.artifacts.folders import Kind, kind_of
from reef.config import RehearsalConfig
from reef.errors import ConfigError
from reef.learner.recipe import Recipe
from reef.types import CandidateState, Component, Decision, TokenTrace
from tests.support.rehearsal import rehearsing
from tests.support.weights import SCENARIO, Judge, Lab

EXAMPLE = Path(__file__).parents[2] / "recipes" / "both" / "examples" / "both" / "serve.yaml"
RULE = "Colours are written in capital letters here."


class Rehearsal:
    """Implements :class:`reef.learner.recipe.Model` by the rehearsal model; keeps the names it was asked by."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.named: list[str] = []

    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str, model: str = "") -> str:
        self.named.append(model)
        with openai.OpenAI(base_url=self.url, api_key="none", timeout=30, max_retries=0) as client:
            answer = client.chat.completions.create(model="m", messages=list(messages))  # type: ignore[arg-type]
        return answer.choices[0].message.content or ""


@pytest.fixture
def rehearsal() -> Iterator[Rehearsal]:
    with rehearsing(RehearsalConfig(proposals=["useful"])) as url:
        yield Rehearsal(url)


@pytest.fixture
def without_torch(tmp_path: Path, rehearsal: Rehearsal) -> Iterator[Lab]:
    """A lab whose trainer writes what stands for a LoRA."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    made = Lab(tmp_path, tmp_path / "base", settings={"trainer": "tests.support.trainers:Writes"}, asks=rehearsal)
    yield made
    made.engine.dispose()


def both(**changes: Any) -> BothRecipe:
    options: dict[str, Any] = {"harness": {"recipe": "cordis", "options": {"model": "strong"}}, "weights": {"recipe": "sao"}}
    return BothRecipe(batch_size=1, options={**options, **changes})


def scored(lab: Lab, session: str, score: float | None, **more: Any) -> str:
    """A session of one exchange, and a report on it."""
    trace = TokenTrace((1, 2), (7, 8), (-0.5, -1.0))
    lab.answer([{"role": "user", "content": "Name a colour."}], "red", session=session, tokens=trace)
    return lab.report(session, score, **more)


def unused(lab: Lab, recipe: BothRecipe) -> dict[str, list[str]]:
    return {part.name: [report.id for report in lab.store.unconsumed_reports(SCENARIO, part.name)] for part in recipe.parts}


def test_what_waits_decides_which_surface_moves(without_torch: Lab, rehearsal: Rehearsal) -> None:
    here, recipe = without_torch, both()
    learner = here.learner(recipe)
    scored(here, "praised", 1.0)
    assert learner.step(SCENARIO)
    (lora,) = here.candidates()
    assert (lora.component, lora.recipe, lora.state) == (Component.MODEL, "sao", CandidateState.RELEASED)
    told = scored(here, "in words", None, feedback=RULE)
    assert learner.step(SCENARIO)
    harness = next(candidate for candidate in here.candidates() if candidate.component is Component.HARNESS)
    assert (harness.recipe, harness.state, harness.reports) == ("cordis", CandidateState.RELEASED, (told,))
    assert rehearsal.named == ["strong"], "the proposer is the one that the options name"
    head = here.controller.head(SCENARIO)
    assert head.components["harness"].content_id == harness.content_id
    assert head.components["model"].content_id == lora.content_id
    assert RULE in "".join(file.data.decode() for file in here.artifacts.read(head.commit).values())
    assert not learner.step(SCENARIO)
    assert unused(here, recipe)["sao"] == [], "words without a score are passed over by the weights"
    assert here.controller.verify(SCENARIO) == []


def test_one_report_serves_both_once(without_torch: Lab) -> None:
    here, recipe = without_torch, both()
    report = scored(here, "failed", 0.0, feedback=RULE)
    learner = here.learner(recipe)
    assert learner.step(SCENARIO)
    assert {candidate.component: candidate.reports for candidate in here.candidates()} == {
        Component.HARNESS: (report,),
        Component.MODEL: (report,),
    }
    assert unused(here, recipe) == {"cordis": [], "sao": []}
    assert not learner.step(SCENARIO)
    assert here.controller.head(SCENARIO).step == 3


def test_each_surface_has_its_judge(without_torch: Lab) -> None:
    here, recipe = without_torch, both()
    here.judge = {Component.HARNESS: Judge(Decision.REJECT), Component.MODEL: Judge()}
    scored(here, "failed", 0.0, feedback=RULE)
    here.learner(recipe).step(SCENARIO)
    states = {candidate.component: candidate.state for candidate in here.candidates()}
    assert states == {Component.HARNESS: CandidateState.REJECTED, Component.MODEL: CandidateState.RELEASED}
    assert set(here.controller.head(SCENARIO).components) == {"harness", "model"}


def test_by_default_words_go_to_cordis_and_demonstrations_to_sft() -> None:
    recipe = BothRecipe(batch_size=7, options={"weights": {"recipe": "sft", "batch_size": 2, "options": {"max_tokens": 99}}})
    harness, weights = recipe.parts
    assert isinstance(harness, CordisRecipe)
    assert isinstance(weights, SFTRecipe)
    assert (harness.batch_size, weights.batch_size, weights.settings.max_tokens) == (7, 2, 99)
    assert recipe.needs_tokens


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"colour": "red"}, r"reef\.options\.colour"),
        ({"harness": {"recipe": "sft"}}, r"reef\.options\.harness\.recipe: sft is no recipe for the component harness"),
        ({"weights": {"recipe": "recipes.both.recipe:BothRecipe"}}, r"BothRecipe is no recipe for the component model"),
        ({"weights": {"recipe": "nothing"}}, r"reef\.options\.weights\.recipe: there is no nothing"),
        ({"weights": {"recipe": "sft", "batch_size": 0}}, r"reef\.options\.weights\.batch_size"),
        ({"harness": {"recipe": "cordis", "options": {"colour": 1}}}, r"reef\.options\.harness\.options\.colour"),
        ({"weights": {"recipe": "sft", "options": {"colour": 1}}}, r"reef\.options\.weights\.options\.colour"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        BothRecipe(batch_size=1, options=options)
    assert caught.value.hint


def test_the_example_is_this_recipe_and_names_a_proposer_that_there_is() -> None:
    config = configuration.load(EXAMPLE)
    recipe = BothRecipe(batch_size=config.reef.batch_size, options=config.reef.options)
    assert [part.component for part in recipe.parts] == [Component.HARNESS, Component.MODEL]
    assert config.reef.options["harness"]["options"]["model"] in config.models
    assert next(iter(config.named_upstreams)) == "engine", "users are answered by the model that learns"


def test_words_and_demonstrations_move_both_surfaces(lab: Callable[..., Lab], rehearsal: Rehearsal) -> None:
    """Trains the tiny model; skipped without the extra `train`."""
    here = lab(asks=rehearsal)
    recipe: Recipe = BothRecipe(
        batch_size=2, options={"harness": {"recipe": "cordis", "batch_size": 1}, "weights": {"recipe": "sft", "batch_size": 2}}
    )
    learner = here.learner(recipe)
    here.run("wrong", "Name a colour.", "red", 0.0, feedback={"comment": RULE, "demonstration": "RED"})
    assert learner.step(SCENARIO), "the harness has enough"
    assert [candidate.component for candidate in here.candidates()] == [Component.HARNESS]
    here.run("shown", "Name another.", "blue", 1.0, metadata={"demonstration": "BLUE"})
    assert learner.step(SCENARIO), "and now the weights have"
    assert not learner.step(SCENARIO)
    candidates = {candidate.component: candidate for candidate in here.candidates()}
    assert {candidate.state for candidate in candidates.values()} == {CandidateState.RELEASED}
    assert kind_of(here.artifacts.read(candidates[Component.MODEL].commit)) is Kind.LORA
    head = here.controller.head(SCENARIO)
    assert {name: content.content_id for name, content in head.components.items()} == {
        component.value: candidate.content_id for component, candidate in candidates.items()
    }
    assert here.store.unconsumed_reports(SCENARIO, "sft") == []
    assert [report.score for report in here.store.unconsumed_reports(SCENARIO, "cordis")] == [1.0], "praise waits with Cordis"
    assert here.controller.verify(SCENARIO) == []


def test_asking_no_other_model_leaves_the_default_one(without_torch: Lab, rehearsal: Rehearsal) -> None:
    here = without_torch
    scored(here, "in words", None, feedback=RULE)
    here.learner(both(harness={"recipe": "cordis"})).step(SCENARIO)
    assert rehearsal.named == [""]
