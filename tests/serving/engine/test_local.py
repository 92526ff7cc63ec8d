"""`reef serve --local` in an empty folder, with nothing else configured: told what it does, there at once, answering once the engine is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.serving.models.resolving import is_there
from tests.support.engine import marked, require_vllm
from tests.support.gateway import until
from tests.support.service import _children

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 24}
READY_S = 800.0
"""Of an engine on a machine that has much else to do."""
pytestmark = pytest.mark.timeout(1000)
TINY = ("--model", "tiny", "--set", "serving.vllm.max_model_len=1024")


class Local:
    """`reef serve --local`, seen as by the person who typed it."""

    def __init__(self, folder: Path, *arguments: str, environment: dict[str, str]) -> None:
        self.said = folder / "said"
        self.run = folder / "work" / ".reef" / "run"
        self.run.parent.parent.mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("REEF_") or name == "REEF_CACHE"}
        with self.said.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reef", "serve", "--local", "--port", "0", *arguments],
                cwd=self.run.parent.parent,
                env={**inherited, "OMP_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.until_said("ready at http")
        self.url = self.said.read_text().split("ready at ")[1].split()[0]

    def until_said(self, words: str) -> None:
        until(lambda: self.process.poll() is not None or words in self.said.read_text(), within_s=READY_S)
        assert self.process.poll() is None, self.said.read_text()

    def ask(self, **more: Any) -> Any:
        """The answer of `/v1/chat/completions`, as it came."""
        body = json.dumps({**QUESTION, **more}).encode()
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", body, {"content-type": "application/json"})
        return urllib.request.urlopen(request, timeout=120)

    def text(self) -> str:
        """The answer's text; the same whether it is streamed or not."""
        whole: str = json.load(self.ask())["choices"][0]["message"]["content"]
        lines = [line.decode().strip() for line in self.ask(stream=True)]
        assert lines[-2:] == ["data: [DONE]", ""]
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"]) == whole
        return whole

    def interrupt(self) -> None:
        """Ctrl-C; it must leave no process behind."""
        theirs = [self.process.pid]
        for pid in theirs:
            theirs += _children(pid)
        assert len(theirs) > 5  # gateway, learner, the engine's watcher, guard, server, core and worker
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0, self.said.read_text()
        until(lambda: not marked(self.run) and not [pid for pid in theirs if Path(f"/proc/{pid}").exists()], within_s=60)


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> None:
    require_vllm()


def opened(folder: Path, *arguments: str, environment: dict[str, str]) -> Iterator[Local]:
    local = Local(folder, *arguments, environment=environment)
    try:
        yield local
    finally:
        if local.process.poll() is None:
            local.process.send_signal(signal.SIGINT)
            local.process.wait(60)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Local]:
    """With the tiny model, which is not in the cache yet."""
    yield from opened(tmp_path, *TINY, environment={"REEF_CACHE": str(tmp_path / "cache")})


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Local]:
    """With what it takes by itself."""
    if not is_there("smollm2-135m"):
        pytest.skip("smollm2-135m is not in the cache: reef model fetch smollm2-135m")
    yield from opened(tmp_path, environment={})


def test_it_is_there_before_its_engine_answers_once_that_is_and_leaves_nothing(tiny: Local) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        tiny.ask()
    assert refused.value.code == 503
    assert int(refused.value.headers["retry-after"]) >= 1
    assert json.load(refused.value)["error"]["type"] == "engine_not_ready_error"
    command = [sys.executable, "-m", "reef", "status", "--url", tiny.url]
    status = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "300"})
    assert "model tiny" in status.stdout
    assert str(tiny.run.parent / "log" / "engine.log") in status.stdout
    tiny.until_said("the engine is ready")
    assert tiny.text()
    tiny.interrupt()


@pytest.mark.slow
def test_the_model_that_it_takes_by_itself_answers_sensibly(small: Local) -> None:
    began = time.monotonic()
    small.until_said("the engine is ready")
    print(f"the engine was ready after {time.monotonic() - began:.0f} s")
    assert "Paris" in small.text()
    small.interrupt()
