"""Small training jobs on the tiny model, with log-probabilities as an engine would have recorded them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from reef.config import TrainingConfig
from reef.training.job import TrainingJob, TrainingResult
from reef.training.policy import open_model
from reef.training.sample import Sample

VOCABULARY = 1024
SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "threads": 1, "nice": 0, "rank": 4, "alpha": 8.0}


def forward(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of every token but the first, in the plainest way."""
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([list(tokens)])).logits[0].float()
    return torch.log_softmax(logits_TV[:-1], dim=-1).gather(1, torch.tensor(list(tokens[1:])).unsqueeze(1)).squeeze(1)


def sample(model: Any, *, prompt: Sequence[int], answer: Sequence[int], **fields: Any) -> Sample:
    """A prompt and what was generated after it, with the model's own log-probabilities."""
    tokens = (*prompt, *answer)
    mask = (False,) * len(prompt) + (True,) * len(answer)
    said = [0.0, *forward(model, tokens).tolist()]
    old = tuple(min(value, 0.0) if generated else 0.0 for value, generated in zip(said, mask, strict=True))
    return Sample(tokens=tokens, mask=mask, old_logprobs=old, releases=tuple(0 if each else None for each in mask), **fields)


def rewarded(
    base: Path, *, reward: Callable[[Sequence[int]], float], groups: int = 2, siblings: int = 4, seed: int = 0
) -> tuple[Sample, ...]:
    """Random answers of differing lengths to random prompts, judged by a toy reward."""
    rng = random.Random(seed)
    model = open_model(base, dtype=torch.float32, device=torch.device("cpu"))
    found = []
    for group in range(groups):
        prompt = [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(3, 12))]
        for _ in range(siblings):
            answer = [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(4, 9))]
            found.append(sample(model, prompt=prompt, answer=answer, group=f"g{group}", reward=reward(answer)))
    return tuple(found)


def even_share(answer: Sequence[int]) -> float:
    """The toy reward: even tokens are good."""
    return sum(token % 2 == 0 for token in answer) / len(answer)


def job(
    folder: Path, *, base: Path, samples: Sequence[Sample], loss: str = "grpo", settings: dict[str, Any] | None = None, **more: Any
) -> TrainingJob:
    """A job with settings that suit the tiny model."""
    config = TrainingConfig.model_validate(SETTINGS | (settings or {}))
    return TrainingJob(folder=folder, base=base, samples=tuple(samples), loss=loss, settings=config, **more)


def check_alike(one: TrainingResult, two: TrainingResult, *, rate: float) -> None:
    """Two checkpoints of the same job, made by differing numbers of processes, are the same but for rounding."""
    for name in ("loss", "grad_norm", "tokens", "updates"):
        assert two.metrics[name] == pytest.approx(one.metrics[name], rel=1e-3, abs=1e-5), name
    files = sorted(path.relative_to(one.folder).as_posix() for path in one.folder.rglob("*.safetensors"))
    assert files == sorted(path.relative_to(two.folder).as_posix() for path in two.folder.rglob("*.safetensors"))
    for file in files:
        alone, shared = load_file(one.folder / file), load_file(two.folder / file)
        assert alone.keys() == shared.keys()
        for key in alone:
            assert alone[key].shape == shared[key].shape
            if "optimizer" not in file:  # AdamW's first steps have the size of the rate, whatever that of the gradient
                far = (alone[key] - shared[key]).abs()
                assert far.max() <= 4.1 * rate and far.mean() <= 0.02 * rate, key
            else:
                torch.testing.assert_close(shared[key], alone[key], atol=1e-4, rtol=0.02)


def digest(folder: Path) -> str:
    """Of every byte and name in a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(path.relative_to(folder).as_posix().encode())
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()
