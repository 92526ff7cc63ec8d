"""What was demonstrated trains in place of what was answered, behind the tokens that the engine read."""

from __future__ import annotations

from collections.abc import Callable

from recipes.sft.recipe import SFTRecipe
from reef.artifacts.folders import Kind, kind_of
from reef.types import CandidateState
from tests.support.weights import SCENARIO, Lab

Labs = Callable[..., Lab]


def test_sft_trains_on_what_should_have_been_answered(lab: Labs) -> None:
    here = lab()
    better = here.answer([{"role": "user", "content": "hard"}], "four, of course", session="better", upstream="http://better/v1")
    first = here.run("told", "hard", "five", 0.0, feedback={"demonstration": "It is four."})
    here.run("quoted", "hard", "six", None, metadata={"demonstrated_by": better.id})
    here.run("scored", "hard", "seven", 1.0)
    recipe = SFTRecipe(batch_size=2, options={})
    bench = here.learner(recipe)._bench(SCENARIO)
    selection = recipe.select(bench)
    told, quoted = recipe.samples(selection.batch.found, bench=bench)  # type: ignore[union-attr]
    assert first.tokens is not None
    prompt = first.tokens.prompt_ids
    for sample, answer in ((told, "It is four."), (quoted, "four, of course")):
        assert sample.tokens[: len(prompt)] == prompt
        assert sample.mask == (False,) * len(prompt) + (True,) * (len(sample.tokens) - len(prompt))
        assert here.prompts._tokenizer.decode(list(sample.tokens[len(prompt) :]), skip_special_tokens=False) == f"{answer}<|im_end|>"
    assert told.records == (first.id,)
    assert here.learner(recipe).step(SCENARIO)
    (candidate,) = here.candidates()
    assert candidate.state is CandidateState.RELEASED
    assert kind_of(here.artifacts.read(candidate.commit)) is Kind.LORA
    assert here.store.unconsumed_reports(SCENARIO, "sft") == [], "the one without a demonstration was passed over"


def test_of_a_conversation_the_last_answer_is_what_is_demonstrated(lab: Labs) -> None:
    here = lab()
    asked = {"role": "user", "content": "Name a colour."}
    here.answer([asked], "Paris", session="talk")
    talk = [asked, {"role": "assistant", "content": "Paris"}, {"role": "user", "content": "No, a colour I said!"}]
    here.answer(talk, "London", session="talk")
    here.report("talk", 0.0, feedback={"demonstration": "red"})
    recipe = SFTRecipe(batch_size=1, options={})
    bench = here.learner(recipe)._bench(SCENARIO)
    (sample,) = recipe.samples(recipe.select(bench).batch.found, bench=bench)  # type: ignore[union-attr]
    trained = [token for token, shown in zip(sample.tokens, sample.mask, strict=True) if shown]
    read = [token for token, shown in zip(sample.tokens, sample.mask, strict=True) if not shown]
    assert here.prompts._tokenizer.decode(trained, skip_special_tokens=False) == "red<|im_end|>"
    assert "Paris<|im_end|>" in here.prompts._tokenizer.decode(read, skip_special_tokens=False)
