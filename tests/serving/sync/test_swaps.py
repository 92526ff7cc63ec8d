"""Weights into a running engine: what it serves afterwards, what is told of it, and what serves on when a sync fails."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reef.errors import WeightSyncError, WeightSyncTimeout
from reef.serving.sync.choose import choose, has_worker
from reef.serving.sync.disk import DiskSync
from reef.serving.sync.interface import WeightKind, Weights, WeightSync, weights_in
from reef.serving.sync.lora import LoraSync
from reef.serving.sync.transfer import TransferSync
from tests.serving.sync.engine import PROMPT, TinyEngine

TOLERANCE = 1e-4
SWAPS = 100


@functools.cache
def reference(folder: Path, tokens: tuple[int, ...], lora: Path | None = None) -> list[float]:
    """The log-probabilities of an answer's tokens by a Hugging Face forward."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if lora is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, lora)
    ids_T = torch.tensor([*PROMPT, *tokens])
    with torch.no_grad():
        logprobs_TV = torch.log_softmax(model(ids_T[None]).logits[0], dim=-1)
    return [float(logprobs_TV[len(PROMPT) - 1 + place, token]) for place, token in enumerate(tokens)]


def assert_serves(engine: TinyEngine, folder: Path, *, model: str = "tiny", lora: Path | None = None) -> tuple[list[int], list[float]]:
    tokens, logprobs = engine.complete(model=model)
    assert logprobs == pytest.approx(reference(folder, tuple(tokens), lora), abs=TOLERANCE)
    return tokens, logprobs


def make_lora(folder: Path, base: Path, *, seed: int) -> Path:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    return folder


def full(models: Path, number: int, *, step: int = 2) -> Weights:
    return weights_in(models / str(number), name=f"default.{step}")


def gloo(engine: TinyEngine, models: Path) -> WeightSync:
    return choose(WeightKind.FULL, [engine.client])


def ipc(engine: TinyEngine, models: Path) -> WeightSync:
    return choose(WeightKind.FULL, [engine.client], way="ipc")


def disk(engine: TinyEngine, models: Path) -> WeightSync:
    return choose(WeightKind.FULL, [engine.client], way="disk", base=models / "0")


@pytest.mark.parametrize("way", [gloo, ipc, disk])
def test_after_a_swap_the_engine_serves_the_new_weights_and_after_rolling_back_the_old_to_the_bit(
    engine: TinyEngine, models: Path, way: Callable[[TinyEngine, Path], WeightSync]
) -> None:
    sync = way(engine, models)
    assert isinstance(sync, DiskSync if way is disk else TransferSync)
    if way is disk:  # it knows no folder for what others have activated
        first = full(models, 0, step=1)
        sync.stage(first)
        sync.activate(first)
    before = assert_serves(engine, models / "0")
    weights = full(models, 1)
    staged = sync.stage(weights)
    assert staged.size_bytes > 1_000_000
    assert engine.complete() == before  # nothing has changed yet
    swap = sync.activate(weights)
    after = assert_serves(engine, models / "1")
    assert after[0] != before[0]
    assert (swap.name, engine.client.weight_version()) == ("default.2", "default.2")
    assert [served.digest for served in sync.verify(weights)] == [staged.digest]
    back = sync.roll_back()
    assert (back.name, back.previous) == (swap.previous, "default.2")
    assert engine.client.weight_version() == swap.previous
    assert engine.complete() == before


def test_only_what_changed_is_sent_and_the_rest_is_served_as_it_was(engine: TinyEngine, models: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(models / "0", tmp_path / "changed")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"  # vLLM holds it fused with two that do not change
    tensors[name] = tensors[name] * 1.5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    sync = gloo(engine, models)
    weights = weights_in(folder, name="default.3")
    staged = sync.stage(weights)
    assert (staged.tensors, staged.size_bytes) == (1, tensors[name].nbytes)
    sync.activate(weights)
    assert_serves(engine, folder)
    sync.verify(weights)


def test_a_sync_that_comes_back_knows_from_the_engine_what_is_staged(engine: TinyEngine, models: Path) -> None:
    weights = full(models, 2)
    gloo(engine, models).stage(weights)
    gloo(engine, models).activate(weights)
    assert_serves(engine, models / "2")
    assert gloo(engine, models).restore(weights) is False
    gloo(engine, models).roll_back()
    assert gloo(engine, models).restore(weights) is True
    assert_serves(engine, models / "2")


def test_what_is_not_staged_is_not_activated(engine: TinyEngine, models: Path) -> None:
    sync, before = gloo(engine, models), engine.complete()
    with pytest.raises(WeightSyncError, match=r"default.9 is not staged on worker 0"):
        sync.activate(full(models, 1, step=9))
    sync.stage(full(models, 1))
    sync.drop("default.2")
    with pytest.raises(WeightSyncError, match=r"default.2 is not staged"):
        sync.activate(full(models, 1))
    assert engine.complete() == before


def test_weights_that_are_not_what_serves_are_told_apart(engine: TinyEngine, models: Path) -> None:
    sync = gloo(engine, models)
    with pytest.raises(WeightSyncError, match=r"serves start.0, and it should serve default.2"):
        sync.verify(full(models, 1))
    with pytest.raises(WeightSyncError, match=r"worker 0 of .* serves other bytes"):
        sync.verify(weights_in(models / "1", name="start.0"))


def test_each_lora_has_a_name_of_its_own_and_old_ones_go(engine: TinyEngine, models: Path, tmp_path: Path) -> None:
    base = assert_serves(engine, models / "0")
    sync = LoraSync([engine.client], keep=2, in_use=lambda: ["chat.1"])
    answers = []
    for step in range(1, 5):
        weights = weights_in(make_lora(tmp_path / str(step), models / "0", seed=step), name=f"chat.{step}")
        assert weights.kind is WeightKind.LORA
        sync.stage(weights)
        assert sync.stage(weights).size_bytes == 0  # it is there
        sync.activate(weights)
        sync.verify(weights)
        answers.append(assert_serves(engine, models / "0", model=weights.name, lora=weights.folder))
    assert len({tuple(tokens) for tokens, _ in [base, *answers]}) == 5
    assert {name for name in engine.client.models() if name.startswith("chat.")} == {"chat.1", "chat.3", "chat.4"}  # 1 is in use
    assert sync.roll_back().name == "chat.3"
    assert engine.complete(model="chat.3") == answers[2]
    other = weights_in(make_lora(tmp_path / "other", models / "0", seed=9), name="chat.4")
    with pytest.raises(WeightSyncError, match=r"has another LoRA under the name chat.4"):
        sync.stage(other)
    with pytest.raises(WeightSyncError, match=r"has chat.2 not at all"):
        sync.verify(weights_in(tmp_path / "2", name="chat.2"))
    for name in ("chat.1", "chat.3", "chat.4"):
        sync.drop(name)


def test_a_trainer_that_dies_in_mid_transfer_leaves_the_old_weights_serving(engine: TinyEngine, models: Path) -> None:
    from tests.serving.sync import ranks

    before = engine.complete()
    ranks.trainer_of_an_engine_that_dies(engine.client.url, models / "1", name="default.2")
    assert engine.complete() == before
    sync, weights = gloo(engine, models), full(models, 1)
    with pytest.raises(WeightSyncError, match="is not staged"):
        sync.activate(weights)
    sync.stage(weights)
    sync.activate(weights)
    assert_serves(engine, models / "1")


def test_an_engine_that_does_not_answer_is_named_and_goes_on_later(engine: TinyEngine, models: Path) -> None:
    before, sync, weights = engine.complete(), gloo(engine, models), full(models, 1)
    workers = engine.processes("Worker") + engine.processes("EngineCor")
    assert workers
    for process in workers:
        os.kill(process, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(WeightSyncTimeout, match=f"{engine.client.url}.*did not"):
            sync.stage(weights, deadline_s=3)
        with pytest.raises(WeightSyncTimeout, match=f"{engine.client.url} did not answer"):
            sync.activate(weights, deadline_s=3)
        assert time.monotonic() - started < 20
    finally:
        for process in workers:
            os.kill(process, signal.SIGCONT)
    assert engine.complete() == before
    sync.stage(weights)
    sync.activate(weights)
    assert_serves(engine, models / "1")


def test_an_answer_that_a_swap_falls_into_goes_on_with_the_new_weights(engine: TinyEngine, models: Path) -> None:
    sync, weights, prompt = gloo(engine, models), full(models, 1), list(range(200, 240))
    sync.stage(weights)
    tokens: list[int] = []
    swapped_at = 0
    for _, chunk in engine.stream(tokens=900, prompt=prompt):  # a fast machine says some hundreds while the swap is made
        tokens += chunk["choices"][0]["token_ids"]
        if not swapped_at and len(tokens) >= 20:
            sync.activate(weights)
            swapped_at = len(tokens)
    assert len(tokens) == 900
    # From some token on it is what the new weights say to all that stands before, as if they had read it themselves.
    late, _ = engine.complete(prompt=[*prompt, *tokens[:850]], tokens=50)
    assert late == tokens[850:]


@pytest.mark.slow
def test_a_hundred_swaps_under_load_fail_no_request(engine: TinyEngine, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sync = gloo(engine, models)
    stop, gaps, errors, done = threading.Event(), [0.0], [], [0]

    def load(number: int) -> None:
        while not stop.is_set():
            try:
                last, tokens = time.monotonic(), 0
                for at, chunk in engine.stream(tokens=100, prompt=list(range(50 * number, 50 * number + 60))):
                    gaps.append(at - last)
                    last, tokens = at, tokens + len(chunk["choices"][0]["token_ids"])
                assert tokens == 100, tokens
                done[0] += 1
            except Exception as error:
                errors.append(repr(error))

    threads = [threading.Thread(target=load, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    pauses = []
    try:
        for step in range(SWAPS):
            weights = full(models, step % 4, step=step + 10)
            sync.stage(weights)
            pauses.append(sync.activate(weights).pause_s)
            if step % 10 == 0:
                sync.verify(weights)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not errors
    assert done[0] > 4
    assert_serves(engine, models / str((SWAPS - 1) % 4))
    with capsys.disabled():
        print(json.dumps({"swaps": SWAPS, "answers": done[0], "longest pause s": max(pauses), "longest gap between tokens s": max(gaps)}))


def test_an_engine_without_our_worker_is_told_apart(engine: TinyEngine) -> None:
    assert has_worker(engine.client)
