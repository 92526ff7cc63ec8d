"""A vLLM of the size for tests: started, asked, and ended with all of its processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from benchmarks.parts.vllm_server import server
from reef.config import VLLMConfig
from reef.serving.engine.client import EngineClient

PROMPT = list(range(30, 70))


@dataclass
class TinyEngine:
    """A running server."""

    client: EngineClient
    port: int
    guard: int
    """The process above all others of the engine."""

    def complete(self, *, model: str = "tiny", tokens: int = 12, prompt: list[int] | None = None) -> tuple[list[int], list[float]]:
        """The greedy answer: ids and log-probabilities."""
        choice = self.ask(
            {
                "model": model,
                "prompt": prompt or PROMPT,
                "max_tokens": tokens,
                "temperature": 0,
                "logprobs": 0,
                "return_token_ids": True,
                "ignore_eos": True,
            }
        )
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """One completion's choice."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            return json.loads(text)["choices"][0]
        finally:
            connection.close()

    def stream(self, *, tokens: int, prompt: list[int], model: str = "tiny") -> Iterator[tuple[float, dict[str, Any]]]:
        """The chunks of one streamed completion, each with the moment at which it came."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "return_token_ids": True,
            "ignore_eos": True,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            while line := answer.readline():
                if line.startswith(b"data: {"):
                    yield time.monotonic(), json.loads(line[6:])
        finally:
            connection.close()

    def processes(self, name: str) -> list[int]:
        """The engine's processes of that name: EngineCore, Worker."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                title = (folder / "cmdline").read_bytes()
                if f"VLLM::{name}".encode() in title and os.getpgid(int(folder.name)) == self.guard:
                    found.append(int(folder.name))
        return found


@contextlib.contextmanager
def start(
    model: Path,
    *,
    logs: Path,
    on: Literal["cpu", "cuda"] = "cpu",
    environment: Mapping[str, str] | None = None,
    lora_slots: int = 2,
    extra: tuple[str, ...] = (),
) -> Iterator[TinyEngine]:
    """A server of a model, in float32."""
    config = VLLMConfig(
        model=str(model),
        name="tiny",
        dtype="float32",
        max_model_len=1024,
        lora_slots=lora_slots,
        max_lora_rank=8,
        max_loras=8,
        tool_parser="",
        extra_args=extra,
    )
    with server(config, log=logs / "engine.log", on=on, environment=environment) as (client, pid):
        yield TinyEngine(client, urlsplit(client.url).port or 0, pid)
