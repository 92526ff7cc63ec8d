"""What was demonstrated trains in place of what was answered, behind the tokens that the engine read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipes.sft.examples.pi_tools import jobs as pi_tools
from recipes.sft.recipe import SFTRecipe
from reef.artifacts.folders import Kind, kind_of
from reef.training.batches import Terms
from reef.types import CandidateState
from tests.support.weights import SCENARIO, Lab

Labs = Callable[..., Lab]
TEMPLATE = Path(pi_tools.__file__).parent / "tools.jinja"
CALL = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": '{"path": "a.txt", "content": "hi\\n"}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
SHOWN_CALL = '<tool_call>{"name": "write", "arguments": {"path": "a.txt", "content": "hi\\n"}}</tool_call><|im_end|>'
PARAMETERS = {"type": "object", "properties": {"path": {}, "content": {}}}
TOOLS = [{"type": "function", "function": {"name": "write", "parameters": PARAMETERS}}]


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


def demonstrated(here: Lab, session: str) -> None:
    """A session of two turns that a model elsewhere answered: a call, and a word at its end."""
    asked: list[Any] = [{"role": "system", "content": "You work on files."}, {"role": "user", "content": "Write hi to a.txt"}]
    done = [*asked, CALLS, {"role": "tool", "tool_call_id": "c1", "content": "Done."}]
    for messages, answer in ((asked, CALLS), (done, {"role": "assistant", "content": "Wrote a.txt."})):
        request = {"model": "expert", "messages": messages, "tools": TOOLS}
        response = {"id": "r", "model": "expert-1", "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]}
        here.answer(messages, "", session=session, upstream="http://expert/v1", tokens=None, request=request, response=response)


def test_a_session_that_another_model_answered_is_learned_turn_by_turn_with_its_calls(lab: Labs) -> None:
    here = lab(template=TEMPLATE)
    demonstrated(here, "shown")
    here.report("shown", 1.0, metadata={"demonstrates": True})
    demonstrated(here, "not-vouched-for")
    here.report("not-vouched-for", 1.0)
    recipe = SFTRecipe(batch_size=1, options={})
    bench = here.learner(recipe)._bench(SCENARIO)
    (sample,) = recipe.samples(recipe.select(bench).batch.found, bench=bench)  # type: ignore[union-attr]
    decode = here.prompts._tokenizer.decode
    assert decode([token for token, learned in zip(sample.tokens, sample.mask, strict=True) if learned], skip_special_tokens=False) == (
        SHOWN_CALL + "Wrote a.txt.<|im_end|>"
    )
    assert decode(list(sample.tokens), skip_special_tokens=False).startswith(
        "<|im_start|>system\nYou work on files.\n\nYour tools:\nwrite(path, content)\nTo use one, answer"
    )
    assert len(sample.records) == 2, "the turns extend each other: one pass reads them"
    assert here.learner(recipe).step(SCENARIO)
    (candidate,) = here.candidates()
    assert candidate.state is CandidateState.RELEASED
    assert here.store.unconsumed_reports(SCENARIO, "sft") == [], "the one that nobody vouched for was passed over"


def test_a_demonstration_does_not_grow_old_and_what_is_held_out_is_none(lab: Labs) -> None:
    here = lab(template=TEMPLATE)
    for session in ("tested", "shown"):
        demonstrated(here, session)
        here.report(session, feedback={"demonstrates": True})
    recipe = SFTRecipe(batch_size=1, options={})
    bench = here.learner(recipe)._bench(SCENARIO)
    batch = recipe.read(bench, terms=Terms(parent=50, max_staleness=0, withheld={"tested"}))
    assert {sample.session for sample in batch.samples} == {"shown"}
    assert batch.skipped["withheld"] == 2
    assert batch.lags == {0: 2}


@pytest.mark.parametrize("place", ["demonstrated_by", "demonstration"])
def test_what_a_better_model_called_is_demonstrated_as_a_call(lab: Labs, place: str) -> None:
    here = lab(template=TEMPLATE)
    asked = [{"role": "user", "content": "Write hi to a.txt"}]
    response = {"id": "r", "model": "expert-1", "choices": [{"index": 0, "message": CALLS, "finish_reason": "tool_calls"}]}
    better = here.answer(asked, "", session="better", upstream="http://expert/v1", tokens=None, response=response)
    here.run("asked", "Write hi to a.txt", "I cannot.", 0.0, feedback={place: better.id if place == "demonstrated_by" else "In a file."})
    recipe = SFTRecipe(batch_size=1, options={})
    bench = here.learner(recipe)._bench(SCENARIO)
    (sample,) = recipe.samples(recipe.select(bench).batch.found, bench=bench)  # type: ignore[union-attr]
    learned = [token for token, taught in zip(sample.tokens, sample.mask, strict=True) if taught]
    told = here.prompts._tokenizer.decode(learned, skip_special_tokens=False)
    assert told == (SHOWN_CALL if place == "demonstrated_by" else "In a file.<|im_end|>")
