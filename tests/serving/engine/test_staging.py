"""Released LoRAs come to the engine by themselves, and what a scenario's requests are answered by is its head's, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.artifacts import folders
from reef.learner.staging import Stager
from reef.releases import imports
from reef.types import Component
from tests.support.asking import Asking, until_more
from tests.support.engine import Running
from tests.support.gateway import Service, service, until

ASKED = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12, "temperature": 0}


def lora(model: Path, folder: Path, *, seed: int) -> Path:
    """A LoRA that changes what the model says."""
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    base = transformers.AutoModelForCausalLM.from_pretrained(model)
    made = peft.get_peft_model(base, peft.LoraConfig(r=8, lora_alpha=64, target_modules="all-linear", init_lora_weights=False))
    made.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    return folder


@pytest.fixture
def gateway(own_engine: Running, tmp_path: Path) -> Iterator[Service]:
    vllm = {"attach": own_engine.url, "name": "tiny"}
    with service(tmp_path / "state", upstream="", serving={"vllm": vllm}, storage_section={"tokens": "always"}) as running:
        until(lambda: "default" in running.state.scenarios.heads)
        yield running


def release(gateway: Service, folder: Path) -> int:
    tree = folders.take_in(gateway.state.artifacts, folder)
    return imports.bring_in(gateway.state.controller, "default", Component.MODEL, tree, summary="a LoRA").step


def said(gateway: Service, model: str = "tiny") -> tuple[str, list[float]]:
    """Which model answered, and with what log-probabilities."""
    record = gateway.record(gateway.chat({**ASKED, "model": model}))
    assert record.tokens is not None
    return record.model, list(record.tokens.logprobs)


def test_a_head_serves_from_the_moment_its_weights_are_there_and_a_rollback_gives_the_old_log_probabilities(
    own_engine: Running, gateway: Service, tmp_path: Path
) -> None:
    controller = gateway.state.controller
    stager = Stager(controller, client=own_engine.client, folder=tmp_path / "weights", keep=2, stop=threading.Event())
    base = said(gateway)
    assert base[0] == "tiny"
    first = release(gateway, lora(own_engine.model, tmp_path / "one", seed=1))
    assert said(gateway) == base  # until the first is there
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{first}", within_s=5)
    before = said(gateway)[1]
    assert before != base[1]
    assert said(gateway, "reef")[1] == before
    second = release(gateway, lora(own_engine.model, tmp_path / "two", seed=2))
    assert said(gateway)[0] == f"default.{first}"  # until the new one is there
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{second}", within_s=5)
    assert said(gateway)[1] != before
    controller.rollback("default", first)
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{second + 1}", within_s=5)
    assert said(gateway)[1] == before
    assert f"default.{first}" not in own_engine.client.models()  # no more than two are kept


def test_what_an_engine_lost_is_brought_again(own_engine: Running, gateway: Service, tmp_path: Path) -> None:
    stager = Stager(gateway.state.controller, client=own_engine.client, folder=tmp_path / "weights", keep=1, stop=threading.Event())
    step = release(gateway, lora(own_engine.model, tmp_path / "one", seed=3))
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{step}", within_s=5)
    own_engine.client.unload_lora(f"default.{step}")
    assert gateway.chat({**ASKED, "model": "tiny"}).status == 404  # the base never answers in its place
    stager.look()
    assert f"default.{step}" in own_engine.client.models()
    assert said(gateway)[0] == f"default.{step}"


def test_an_answer_is_of_the_release_it_began_with_to_its_last_token_whatever_is_released_meanwhile(
    own_engine: Running, gateway: Service, tmp_path: Path
) -> None:
    stager = Stager(gateway.state.controller, client=own_engine.client, folder=tmp_path / "weights", keep=2, stop=threading.Event())
    first = release(gateway, lora(own_engine.model, tmp_path / "one", seed=4))
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{first}", within_s=5)
    second = release(gateway, lora(own_engine.model, tmp_path / "two", seed=5))
    under_way = Asking(gateway, {**ASKED, "model": "tiny", "stream": True})
    until_more(own_engine)
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{second}", within_s=5)
    record = under_way.record()
    assert record.tokens is not None
    assert (record.model, record.response["model"], record.tokens.served) == (f"default.{first}", f"default.{first}", ())
    again = Asking(gateway, {**ASKED, "model": f"default.{first}"}).record().tokens
    assert again is not None
    assert record.tokens.completion_ids == again.completion_ids
    assert record.tokens.logprobs == pytest.approx(again.logprobs, abs=1e-4)
