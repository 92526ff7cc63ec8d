"""How vLLM is started: flags and environment, by what the configuration wants and what the machine has.

Sources: vLLM 0.32's own help, and what was tried on a machine without a GPU (shared/facts/vllm_cpu.md).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reef.config import VLLMConfig
from reef.errors import ConfigError
from reef.serving.engine import cores
from reef.serving.models.folders import INSTALL

SERVER = "vllm.entrypoints.openai.api_server"
"""Not the command ``vllm``: that one looks for a distribution of its own name, and on CPU it is called vllm-cpu."""
MARK = "REEF_ENGINE"
"""A variable in the environment of every process of an engine: whose it is."""
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Command:
    """What is run, and what is added to the environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def device() -> Device:
    """What the installed vLLM computes on.

    Raises:
        ConfigError: there is none.
    """
    problem = missing()
    if problem:
        raise ConfigError(problem, hint=INSTALL)
    if distribution("vllm-cpu") is None and shutil.which("nvidia-smi") is not None:
        return "cuda"
    return "cpu"


def missing() -> str:
    """What keeps an engine from being run here, in words; empty if nothing does."""
    return "" if importlib.util.find_spec("vllm") is not None else "vLLM is not installed"


def distribution(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def command(
    config: VLLMConfig, *, model: str, on: Device, chat_template: Path | None = None, mark: str = "", bind: str = cores.AUTO
) -> Command:
    """The command that serves a model.

    Args:
        config: ``serving.vllm``, its port found.
        model: a folder, or a name on Hugging Face.
        chat_template: where `chat_template` of ``config`` is; None: the model's own is taken.
        on: what it computes on.
        mark: put into the environment of all its processes, to find them again.
        bind: the cores that it computes on where there is no GPU: :mod:`reef.serving.engine.cores`.
    """
    arguments = [sys.executable, "-m", SERVER, "--model", model, "--served-model-name", config.served_name]
    arguments += ["--host", config.host, "--port", str(config.port), "--dtype", config.dtype]
    arguments += ["--max-num-seqs", str(config.max_num_seqs), "--enable-prefix-caching", "--disable-uvicorn-access-log"]
    if config.max_model_len is not None:
        arguments += ["--max-model-len", str(config.max_model_len)]
    if chat_template is not None:
        arguments += ["--chat-template", str(chat_template)]
    if config.tool_parser:
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", config.tool_parser]
    if config.lora_slots:
        slots, kept = str(config.lora_slots), str(max(config.max_loras, config.lora_slots))
        arguments += ["--enable-lora", "--max-loras", slots, "--max-cpu-loras", kept, "--max-lora-rank", str(config.max_lora_rank)]
    if on == "cuda":
        arguments += ["--gpu-memory-utilization", f"{config.gpu_memory:g}", "--tensor-parallel-size", str(config.tensor_parallel)]
    else:
        arguments += ["--enforce-eager"]  # compiling takes longer than small models gain by it
    arguments += weight_transfer(config)
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",  # pauses, caches, weights
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    if on == "cpu":
        environment |= {"VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib), cores.VARIABLE: bind}
    if model.startswith("/"):
        environment["HF_HUB_OFFLINE"] = "1"  # all of it is there, and nothing is to be asked
    if mark:
        environment[MARK] = mark
    return Command((*arguments, *config.extra_args), environment | config.environment)


def weight_transfer(config: VLLMConfig) -> list[str]:
    """The flags by which full weights can be brought in while it serves (:mod:`reef.serving.sync.worker`)."""
    if config.sync == "none":
        return []
    from reef.serving.sync.choose import engine_flags

    return engine_flags()
