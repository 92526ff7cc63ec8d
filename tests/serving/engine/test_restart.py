"""An engine under a real `reef serve`: what becomes of it, and of the requests, when its processes are killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from reef.serving.models import tiny
from tests.support.engine import START_S, marked, require_vllm
from tests.support.gateway import until
from tests.support.service import Service, serving

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def state(reef: Service) -> str:
    told: str = reef.get("/reef/status")["engine"]["state"]
    return told


def ready(reef: Service) -> bool:
    return state(reef) == "ready"


def named(run: Path, word: str) -> list[int]:
    """Processes of the engine by what they are called."""
    return [pid for pid, name in marked(run).items() if word in name]


def answered(reef: Service) -> Any:
    return reef.post("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_engine_comes_back_after_each_of_its_processes_is_killed_and_leaves_none_behind(tmp_path: Path) -> None:
    require_vllm()
    model = tiny(tmp_path / "tiny")
    settings = [f"serving.vllm.model={model}", "serving.vllm.dtype=float32", "serving.vllm.max_model_len=1024"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    with serving(tmp_path, *arguments, environment={"OMP_NUM_THREADS": "1"}) as reef:
        run = reef.state / "run"
        assert state(reef).startswith("starting")  # the gateway answers long before the engine does
        until(lambda: ready(reef), within_s=START_S)
        assert isinstance(answered(reef), str)
        for word in ("VLLM::EngineCore", "api_server", "guard.py"):
            before = marked(run)
            (victim, *_) = [pid for pid in named(run, word) if word != "api_server" or "guard.py" not in before[pid]]
            os.kill(victim, signal.SIGKILL)
            began = time.monotonic()
            until(lambda: not ready(reef), within_s=60)
            print(f"{word} killed: noticed after {time.monotonic() - began:.1f} s", end="")
            until(lambda: ready(reef), within_s=START_S)
            print(f", ready again after {time.monotonic() - began:.1f} s")
            assert isinstance(answered(reef), str)
            assert not set(before) & set(marked(run))
        watcher = reef.pid("engine")
        assert watcher is not None
        before = marked(run)
        os.kill(watcher, signal.SIGKILL)
        until(lambda: not set(before) & set(marked(run)), within_s=20)
        until(lambda: reef.pid("engine") not in (None, watcher), within_s=30)
    until(lambda: not marked(run), within_s=30)
