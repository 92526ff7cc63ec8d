"""Answers that take an engine a while, and how far it is with them."""

from __future__ import annotations

import threading
import urllib.request
from typing import Any

from reef.types import Record
from tests.support.engine import Running
from tests.support.gateway import Answer, Service, until

LONG = 900
"""Tokens of such an answer: most of the context of the tiny model."""
SOME = 20


def until_more(engine: Running) -> None:
    """Until the engine has made some tokens more."""
    seen = generated(engine)
    until(lambda: generated(engine) >= seen + SOME, within_s=60)


def generated(engine: Running) -> int:
    """How many tokens the engine has made since its start."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("vllm:generation_tokens_total"))


class Asking:
    """A long answer under way, in a thread of its own."""

    def __init__(self, gateway: Service, body: dict[str, Any]) -> None:
        self._gateway = gateway
        self._body = {**body, "max_tokens": LONG, "ignore_eos": True}
        self._answers: list[Answer] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(gateway.chat(self._body)))
        self._thread.start()

    def record(self) -> Record:
        """What was recorded of it, at its end."""
        self._thread.join(120)
        (answer,) = self._answers
        assert answer.status == 200, answer.raw
        return self._gateway.record(answer)
