"""The administrative calls, on a real vLLM."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.errors import ConfigError, EngineError, EngineTimeout
from reef.serving.engine.client import EngineClient
from tests.support.engine import Running


def complete(engine: Running, model: str = "tiny", *, tokens: int = 4) -> dict[str, Any]:
    body = {"model": model, "prompt": "The quick", "max_tokens": tokens, "temperature": 0, "return_token_ids": True}
    request = urllib.request.Request(engine.url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        choice: dict[str, Any] = json.load(answer)["choices"][0]
        return choice


@pytest.fixture(scope="module")
def lora(tiny_engine: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA with weights of its own, as peft writes one."""
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(tiny_engine.model)
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False))
    folder = tmp_path_factory.mktemp("lora") / "lora"
    tuned.save_pretrained(folder)
    return folder


def test_it_is_healthy_and_lists_its_model(tiny_engine: Running) -> None:
    assert tiny_engine.client.health()
    assert tiny_engine.client.models() == ("tiny",)
    assert tiny_engine.client.world_size() == 1


def test_a_lora_is_loaded_under_a_name_answers_differently_and_goes_again(tiny_engine: Running, lora: Path) -> None:
    base = complete(tiny_engine)["token_ids"]
    tiny_engine.client.load_lora("default.7", lora)
    try:
        assert tiny_engine.client.models() == ("tiny", "default.7")
        assert complete(tiny_engine, "default.7")["token_ids"] != base
        with pytest.raises(EngineError, match=r"default\.7"):
            tiny_engine.client.load_lora("default.7", lora)
    finally:
        tiny_engine.client.unload_lora("default.7")
    assert tiny_engine.client.models() == ("tiny",)
    assert complete(tiny_engine)["token_ids"] == base


def test_what_is_not_there_is_refused_in_the_engines_words(tiny_engine: Running, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="gone"):
        tiny_engine.client.unload_lora("gone")
    with pytest.raises(EngineError):
        tiny_engine.client.load_lora("none", tmp_path / "none")


def test_a_pause_keeps_a_request_until_it_goes_on(tiny_engine: Running) -> None:
    expected = complete(tiny_engine, tokens=8)["token_ids"]
    tiny_engine.client.pause(mode="keep")
    try:
        assert tiny_engine.client.is_paused()
        done: list[Any] = []
        asking = threading.Thread(target=lambda: done.append(complete(tiny_engine, tokens=8)["token_ids"]))
        asking.start()
        asking.join(0.5)
        assert asking.is_alive()
    finally:
        tiny_engine.client.resume()
    asking.join(60)
    assert done == [expected]
    assert not tiny_engine.client.is_paused()


def test_prefix_cache_weight_version_and_metrics(tiny_engine: Running) -> None:
    complete(tiny_engine)
    assert tiny_engine.client.reset_prefix_cache()
    before = tiny_engine.client.weight_version()
    tiny_engine.client.update_weight_version("default.3")
    assert tiny_engine.client.weight_version() == "default.3"
    tiny_engine.client.update_weight_version(before)
    metrics = tiny_engine.client.metrics()
    assert metrics["vllm:generation_tokens_total"] > 0
    assert metrics["vllm:num_requests_running"] == 0


def test_a_method_that_workers_lack_is_an_error_and_the_engine_goes_on(tiny_engine: Running) -> None:
    with pytest.raises(EngineError):
        tiny_engine.client.collective_rpc("no_such_method")
    assert tiny_engine.client.health()
    assert len(complete(tiny_engine)["token_ids"]) == 4


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_silence_ends_at_the_bound(silent: str) -> None:
    started = time.monotonic()
    with pytest.raises(EngineTimeout):
        EngineClient(silent, timeout_s=0.2).health()
    assert time.monotonic() - started < 5


def test_nobody_there_says_so() -> None:
    with pytest.raises(EngineError, match="cannot be reached"):
        EngineClient("http://127.0.0.1:1").models()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        EngineClient(url)


class Dying(http.server.BaseHTTPRequestHandler):
    """Answers 500 in the ways vLLM does, and closes."""

    def do_POST(self) -> None:
        body = b'{"error": {"message": "EngineCore died", "code": 500}}' if self.path == "/resume" else b"Internal Server Error"
        self.send_response(500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_the_engines_own_words_are_in_the_error_whatever_their_shape() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dying) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = EngineClient(f"http://127.0.0.1:{server.server_address[1]}/v1/")
        for _ in range(2):
            with pytest.raises(EngineError, match="500: EngineCore died"):
                client.resume()
        with pytest.raises(EngineError, match="500: Internal Server Error"):
            client.pause()
        server.shutdown()
