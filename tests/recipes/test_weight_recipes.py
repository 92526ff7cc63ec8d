"""Each recipe makes a candidate of recorded traffic: the tiny model, trained on the CPU in a process of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipes.grpo.recipe import GRPORecipe
from recipes.opd.recipe import OPDRecipe
from recipes.openclaw_rl.recipe import OpenClawRLRecipe
from recipes.sao.recipe import SAORecipe
from recipes.sdft.recipe import SDFTRecipe
from recipes.sdpo.recipe import SDPORecipe
from reef.artifacts.folders import Kind, kind_of
from reef.learner.recipe import Recipe
from reef.types import CandidateState, Component, Decision, Origin
from tests.support.weights import SCENARIO, Judge, Lab, Scripted

Labs = Callable[..., Lab]


def step(lab: Lab, recipe: Recipe) -> None:
    """One step of learning; what went wrong is not hidden by the loop."""
    assert lab.learner(recipe).step(SCENARIO), "nothing was selected"


def conversation(lab: Lab, session: str) -> list[str]:
    """Two turns: the second prompt goes on from the first answer. Their receipts."""
    first = {"role": "user", "content": "Name a colour."}
    answer = {"role": "assistant", "content": "Paris"}
    later = {"role": "user", "content": "No, a colour I said!"}
    one = lab.answer([first], "Paris", session=session)
    two = lab.answer([first, answer, later], "red", session=session)
    return [one.id, two.id]


def test_sao_releases_weights_after_its_critic_learned_alone(lab: Labs) -> None:
    here = lab()
    recipe = SAORecipe(batch_size=1, options={"loss": {"warm_up_steps": 1}})
    here.run("s1", "one", "two", 1.0)
    step(here, recipe)
    assert here.candidates() == [], "the critic alone learned"
    assert here.controller.recipe_state(SCENARIO, "sao")["of"] == ""
    assert here.store.unconsumed_reports(SCENARIO, "sao") == []
    here.run("s2", "one", "four", 0.0)
    step(here, SAORecipe(batch_size=1, options={"loss": {"warm_up_steps": 1}}))  # another process: nothing is kept in memory
    (candidate,) = here.candidates()
    assert candidate.state is CandidateState.RELEASED
    assert candidate.component is Component.MODEL
    assert kind_of(here.artifacts.read(candidate.commit)) is Kind.LORA
    progress = json.loads((here.unpacked(candidate.commit) / "state" / "progress.json").read_bytes())
    assert progress == {"updates": 1, "critic_steps": 2}
    head = here.controller.head(SCENARIO)
    assert head.components["model"].content_id == candidate.content_id
    assert head.components["harness"].content_id == here.controller.release(SCENARIO, 1).content_id


def test_the_next_step_starts_from_the_parent_which_stays_as_it_is(lab: Labs) -> None:
    here = lab()
    recipe = SAORecipe(batch_size=1, options={"loss": {"warm_up_steps": 0}})
    base = {path.name: path.read_bytes() for path in here.model.iterdir()}
    for number in range(2):
        here.answer([{"role": "user", "content": f"prompt {number}"}], "yes", session=f"s{number}", served=f"default.{number + 1}")
        here.report(f"s{number}", 1.0)
        step(here, recipe)
    first, second = sorted(here.candidates(), key=lambda each: each.base_step)
    told = [json.loads((here.unpacked(each.commit) / "state" / "progress.json").read_bytes())["updates"] for each in (first, second)]
    assert told == [1, 2]
    assert here.artifacts.run("rev-parse", f"{second.commit}^").decode().strip() == first.commit
    assert {path.name: path.read_bytes() for path in here.model.iterdir()} == base
    assert here.controller.verify(SCENARIO) == []
    assert {path.name for path in here.ground.jobs.glob("*/*")} == {"parents"}, "no job is left behind"


def test_grpo_takes_whole_groups_that_say_something(lab: Labs) -> None:
    here = lab(judge=Judge(Decision.REJECT))
    recipe = GRPORecipe(batch_size=2, options={"siblings": 2})
    here.run("alone", "nobody else is asked this", "well", 1.0)
    for number in range(2):
        here.run(f"equal{number}", "easy", f"{number}", 1.0)
    here.run("good", "hard", "four", 1.0)
    learner = here.learner(recipe)
    assert learner.step(SCENARIO), "equal rewards are passed over"
    assert not here.candidates()
    assert len(here.store.unconsumed_reports(SCENARIO, "grpo")) == 2
    assert not learner.step(SCENARIO), "there is nothing new"
    here.run("bad", "hard", "five", 0.0)
    assert learner.step(SCENARIO)
    (candidate,) = here.candidates()
    assert candidate.state is CandidateState.REJECTED
    assert {here.store.report(report).session for report in candidate.reports} == {"good", "bad"}
    (waiting,) = here.store.unconsumed_reports(SCENARIO, "grpo")
    assert waiting.session == "alone"
    assert here.controller.head(SCENARIO).step == 1


def test_sdpo_learns_from_the_sibling_that_succeeded(lab: Labs) -> None:
    here = lab()
    here.run("bad", "hard", "five", 0.0, feedback="five is wrong")
    here.run("good", "hard", "four", 1.0)
    recipe = SDPORecipe(batch_size=2, options={"siblings": 2})
    selection = recipe.select(here.learner(recipe)._bench(SCENARIO))
    (taught,) = recipe.samples(selection.batch.found, bench=here.learner(recipe)._bench(SCENARIO))  # type: ignore[union-attr]
    assert taught.reward == 0.0, "who succeeded alone has nobody to learn from"
    read = here.prompts._tokenizer.decode(list(taught.teacher.tokens), skip_special_tokens=False)
    assert "hard\n\nCorrect solution:\n\nfour" in read
    assert "five is wrong" in read
    assert read.endswith("<|im_start|>assistant\nfive<|im_end|>")
    step(here, recipe)
    assert here.candidates()[0].state is CandidateState.RELEASED


def test_sdft_learns_from_demonstrations_without_a_score(lab: Labs) -> None:
    here = lab()
    better = here.answer([{"role": "user", "content": "hard"}], "four, of course", session="better", upstream="http://better/v1")
    here.run("told", "hard", "five", None, feedback={"demonstration": "It is four."})
    here.run("quoted", "hard", "six", None, metadata={"demonstrated_by": better.id})
    here.run("scored", "hard", "seven", 1.0)
    recipe = SDFTRecipe(batch_size=2, options={})
    bench = here.learner(recipe)._bench(SCENARIO)
    selection = recipe.select(bench)
    taught = recipe.samples(selection.batch.found, bench=bench)  # type: ignore[union-attr]
    read = [here.prompts._tokenizer.decode(list(each.teacher.tokens)) for each in taught if each.teacher]
    assert ["It is four." in text for text in read] == [True, False]
    assert "four, of course" in read[1]
    step(here, recipe)
    assert here.candidates()[0].state is CandidateState.RELEASED
    assert here.store.unconsumed_reports(SCENARIO, "sdft") == [], "the one without a demonstration was passed over"


def test_opd_follows_another_model_in_sessions_that_are_over(lab: Labs, tmp_path: Path) -> None:
    from reef.serving.models import tiny

    here = lab()
    receipts = conversation(here, "talk")
    teacher = tiny(tmp_path / "teacher", seed=5)
    recipe = OPDRecipe(batch_size=1, options={"teacher": str(teacher), "idle_s": 3600})
    assert not here.learner(recipe).step(SCENARIO), "the session may go on"
    recipe = OPDRecipe(batch_size=1, options={"teacher": str(teacher), "idle_s": 0})
    here.answer([{"role": "user", "content": "a grader's"}], "x", session="trial", origin=Origin.TRIAL)
    step(here, recipe)
    (candidate,) = here.candidates()
    assert candidate.state is CandidateState.RELEASED
    assert list(candidate.reports) == receipts
    assert not here.learner(recipe).step(SCENARIO), "each record trains once"


def test_openclaw_rl_learns_from_what_came_next(lab: Labs) -> None:
    judge = Scripted('Well: {"vote": -1, "hint": "Name a colour, not a town."}')
    here = lab(asks=judge)
    one, two = conversation(here, "talk")
    recipe = OpenClawRLRecipe(batch_size=1, options={"judge_model": "strong"})
    step(here, recipe)
    ((asked, model),) = judge.asked
    assert model == "strong"
    for text in ("Name a colour.", "Paris", "No, a colour I said!"):
        assert text in asked
    (candidate,) = here.candidates()
    assert candidate.reports == (one,)
    assert candidate.state is CandidateState.RELEASED
    waiting = [each.id for each in here.store.unlearned(SCENARIO, "openclaw_rl")]
    assert waiting == [two], "the last turn waits for what comes next"
    idle = OpenClawRLRecipe(batch_size=1, options={"idle_s": 0})
    assert here.learner(idle).step(SCENARIO)
    assert here.store.unlearned(SCENARIO, "openclaw_rl") == [], "it never trains"
    assert len(here.candidates()) == 1


def test_a_hint_is_read_by_the_teacher_and_not_by_the_student(lab: Labs) -> None:
    here = lab(asks=Scripted('{"vote": 0, "hint": "Name a colour."}'))
    conversation(here, "talk")
    recipe = OpenClawRLRecipe(batch_size=1, options={})
    bench = here.learner(recipe)._bench(SCENARIO)
    batch = recipe.select(bench).batch
    (sample,) = recipe.samples(batch.found, bench=bench)  # type: ignore[union-attr]
    assert sample.teacher is not None
    said = [here.prompts._tokenizer.decode(list(tokens)) for tokens in (sample.tokens, sample.teacher.tokens)]
    assert ["saw how it went" in text for text in said] == [False, True]
    assert sample.reward == 0.0


def test_a_judge_that_says_nothing_consumes_the_batch_and_makes_no_candidate(lab: Labs) -> None:
    here = lab(asks=Scripted("I would rather not say."))
    conversation(here, "talk")
    step(here, OpenClawRLRecipe(batch_size=1, options={}))
    assert here.candidates() == []
    assert len(here.store.unlearned(SCENARIO, "openclaw_rl")) == 1


@pytest.mark.parametrize("settings", [{"method": "full", "learning_rate": 1e-4}], ids=["full"])
def test_all_weights_can_be_trained_too(lab: Labs, settings: dict[str, Any]) -> None:
    here = lab(settings=settings)
    began = time.monotonic()
    here.run("good", "hard", "four", 1.0)
    here.run("bad", "hard", "five", 0.0)
    step(here, GRPORecipe(batch_size=2, options={"siblings": 2}))
    (candidate,) = here.candidates()
    assert kind_of(here.artifacts.read(candidate.commit)) is Kind.CHECKPOINT
    assert time.monotonic() - began < 90
