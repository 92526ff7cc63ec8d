"""Released full weights come to the engine by themselves, and what a scenario's requests are answered by is its head's, or nothing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.artifacts import folders
from reef.learner.full_weights import FullWeights
from reef.learner.staging import Stager
from reef.releases import imports
from reef.serving.sync.bring import Order, bring
from reef.serving.sync.choose import choose
from reef.serving.sync.interface import WeightKind, weights_in
from reef.training.batches import spans
from reef.types import Component
from tests.serving.engine.test_staging import lora
from tests.support.asking import LONG, Asking, until_more
from tests.support.engine import Running
from tests.support.gateway import Service, service, until

TOLERANCE = 1e-4
ASKED = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12, "temperature": 0}


@pytest.fixture
def engine(own_engine: Running) -> Iterator[Running]:
    """An engine that serves its own weights again afterwards, by its own name."""
    yield own_engine
    bring(Order(url=own_engine.url, name="default", alias_s=0.0), stop=threading.Event())
    until(
        lambda: own_engine.client.models()[0] == "tiny" and len(own_engine.client.models()) == 1 + len(own_engine.client.loras()),
        within_s=60,
    )


@pytest.fixture
def gateway(engine: Running, tmp_path: Path) -> Iterator[Service]:
    vllm = {"attach": engine.url, "name": "tiny"}
    with service(tmp_path / "state", upstream="", serving={"vllm": vllm}, storage_section={"tokens": "always"}) as running:
        until(lambda: "default" in running.state.scenarios.heads)
        yield running


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders 1 and 2: models of the engine's shape and of other weights."""
    pytest.importorskip("torch")
    from reef.serving.models import tiny

    folder = tmp_path_factory.mktemp("models")
    for seed in (1, 2):
        tiny(folder / str(seed), seed=seed)
    return folder


def reference(folder: Path, prompt: tuple[int, ...], completion: tuple[int, ...]) -> list[float]:
    """The log-probabilities of an answer's tokens by a Hugging Face forward."""
    import torch
    from transformers import AutoModelForCausalLM

    ids_T = torch.tensor([*prompt, *completion])
    with torch.no_grad():
        logits_TV = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids_T[None]).logits[0]
    logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
    return [float(logprobs_TV[len(prompt) - 1 + place, token]) for place, token in enumerate(completion)]


def stager_of(gateway: Service, engine: Running, folder: Path, *, way: str = "gloo", alias_s: float = 60.0) -> Stager:
    controller, stop = gateway.state.controller, threading.Event()
    order = Order(url=engine.url, way=way, name="", stage_s=120, activate_s=60, alias_s=alias_s)
    full = FullWeights(controller, client=engine.client, order=order, base=lambda: engine.model, run=folder, stop=stop)
    return Stager(controller, client=engine.client, folder=folder / "weights", keep=2, stop=stop, full=full)


def release(gateway: Service, folder: Path, *, scenario: str = "default") -> int:
    tree = folders.take_in(gateway.state.artifacts, folder)
    return imports.bring_in(gateway.state.controller, scenario, Component.MODEL, tree, summary="a whole model").step


def said(gateway: Service, model: str = "tiny", *, scenario: str = "default") -> tuple[str, list[float]]:
    """Which weights answered by the engine's own word, and with what log-probabilities."""
    answer = gateway.chat({**ASKED, "model": model}, x_reef_scenario=scenario)
    assert answer.status == 200, answer.raw
    record = gateway.record(answer)
    assert record.tokens is not None
    return answer.json["model"], list(record.tokens.logprobs)


@pytest.mark.parametrize("way", ["gloo", "disk"])
def test_a_head_with_full_weights_serves_and_rollbacks_give_the_old_log_probabilities(
    engine: Running, gateway: Service, models: Path, tmp_path: Path, way: str
) -> None:
    controller, stager = gateway.state.controller, stager_of(gateway, engine, tmp_path, way=way)
    base = said(gateway)
    assert base[0] == "tiny"
    first = release(gateway, models / "1")
    assert said(gateway) == base  # until the first is there
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{first}", within_s=60)
    before = said(gateway)[1]
    assert before != base[1]
    second = release(gateway, models / "2")
    assert said(gateway) == (f"default.{first}", before)  # until the new one is there
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{second}", within_s=60)
    assert said(gateway)[1] not in (before, base[1])
    controller.rollback("default", first)
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{second + 1}", within_s=60)
    assert said(gateway)[1] == before
    controller.rollback("default", 1)
    assert said(gateway) == (f"default.{second + 1}", before)  # until the engine's own are there
    stager.look()
    until(lambda: said(gateway)[0] == "tiny", within_s=60)
    assert said(gateway) == base
    controller.rollback("default", first)
    assert said(gateway) == base  # nothing was lost: it is as before the first
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{second + 3}", within_s=60)
    assert said(gateway)[1] == before


def test_an_engine_with_full_weights_answers_by_no_other_name_and_gets_them_again_when_it_lost_them(
    engine: Running, gateway: Service, models: Path, tmp_path: Path
) -> None:
    def by_it() -> bool:
        answer = gateway.chat({**ASKED, "model": "tiny"})
        return answer.status == 200 and answer.json["model"] == f"default.{step}"

    step = release(gateway, models / "1")
    stager_of(gateway, engine, tmp_path, alias_s=0.5).look()
    until(by_it, within_s=60)
    before = said(gateway)
    until(lambda: gateway.chat({**ASKED, "model": "tiny"}, x_reef_scenario="another").status == 404, within_s=60)
    assert said(gateway) == before
    bring(Order(url=engine.url, name="default", alias_s=0.5), stop=threading.Event())  # as after a restart
    until(lambda: gateway.chat({**ASKED, "model": "tiny"}).status == 404, within_s=60)  # the base never answers in their place
    stager_of(gateway, engine, tmp_path / "again").look()
    until(by_it, within_s=60)
    assert said(gateway) == before


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("way", ["gloo", "disk"])
def test_of_an_answer_that_swaps_fall_into_each_token_is_of_the_release_that_made_it(
    engine: Running, gateway: Service, models: Path, way: str, streamed: bool
) -> None:
    weights = weights_in(models / "1", name="default.4")
    sync = choose(WeightKind.FULL, [engine.client], way=way, base=engine.model)
    engine.client.follow_names(alias_s=60)
    sync.stage(weights)
    under_way = Asking(gateway, {**ASKED, "model": "tiny", "stream": streamed})
    until_more(engine)
    sync.activate(weights)
    until_more(engine)
    sync.roll_back()
    record = under_way.record()
    trace = record.tokens
    assert trace is not None
    assert record.response["model"] == "tiny", "what it was when the answer began"
    assert trace.served == ("tiny", "default.4", "tiny")
    assert len(trace.completion_ids) == len(trace.logprobs) == LONG
    ends = (*trace.starts[1:], LONG)
    old, new = (reference(folder, trace.prompt_ids, trace.completion_ids) for folder in (engine.model, weights.folder))
    for start, end, own in zip(trace.starts, ends, (old, new, old), strict=True):
        assert list(trace.logprobs[start:end]) == pytest.approx(own[start:end], abs=TOLERANCE)
    for place in (trace.starts[1] - 1, trace.starts[2]):  # the tokens beside a span are not of it
        assert trace.logprobs[place] != pytest.approx(new[place], abs=TOLERANCE)
    assert spans(record) == [(0, None), (trace.starts[1], 4), (trace.starts[2], None)]
    after = gateway.record(gateway.chat({**ASKED, "model": "tiny"}))
    assert after.tokens is not None
    assert (after.response["model"], after.tokens.served) == ("tiny", ())


def test_whoever_comes_second_to_an_engine_with_full_weights_is_refused_and_told_where(
    engine: Running, gateway: Service, models: Path, tmp_path: Path
) -> None:
    gateway.chat(ASKED, x_reef_scenario="other")
    until(lambda: "other" in gateway.state.controller.scenarios())
    stager = stager_of(gateway, engine, tmp_path)
    first = release(gateway, models / "1")
    stager.look()
    second = release(gateway, models / "2", scenario="other")
    stager.look()
    assert engine.client.served() == f"default.{first}"
    assert "the engine has the weights of default" in stager.why_not(f"other.{second}")
    third = release(gateway, lora(engine.model, tmp_path / "lora", seed=1), scenario="other")
    stager.look()
    assert engine.client.loras() == frozenset()
    assert "the engine has the full weights of default" in stager.why_not(f"other.{third}")


def test_weights_that_do_not_fit_leave_the_old_ones_serving(engine: Running, gateway: Service, models: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    stager = stager_of(gateway, engine, tmp_path)
    step = release(gateway, models / "1")
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{step}", within_s=60)
    before = said(gateway)
    broken = shutil.copytree(models / "2", tmp_path / "broken")
    (broken / "model.safetensors").chmod(0o644)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    second = release(gateway, broken)
    stager.look()
    assert "model.norm.weight" in stager.why_not(f"default.{second}")
    assert said(gateway) == before
