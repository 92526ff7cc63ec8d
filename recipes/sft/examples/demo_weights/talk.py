"""The users of the demo: they speak HTTP to the gateway, as any client does."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

AT_ONCE = 8
"""Users that ask at the same time: as many as the engine answers together."""
TIMEOUT_S = 120.0


class DemoFailed(Exception):
    """The story did not end as it should; the message says where."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the gateway answered."""

    text: str
    model: str
    """What served it, as the engine says."""
    receipt: str
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running service."""

    url: str

    def get(self, path: str) -> Any:
        return self._send(path, None, {})[0]

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        return self._send(path, body, headers or {})[0]

    def ask(self, session: str, prompt: str, *, scenario: str, alone: bool = False) -> Answer:
        """One question of one user.

        Args:
            alone: share no prefix with what was asked before, and tell the log-probabilities.
        """
        body: dict[str, Any] = {"model": "reef", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 16}
        if alone:
            body |= {"logprobs": True, "cache_salt": uuid.uuid4().hex}
        told, headers = self._send("/v1/chat/completions", body, {"x-reef-scenario": scenario, "x-reef-session": session})
        choice = told["choices"][0]
        logprobs = [float(token["logprob"]) for token in (choice.get("logprobs") or {}).get("content") or ()]
        return Answer(choice["message"]["content"] or "", told["model"], headers["x-reef-agent-record-id"], logprobs)

    def ask_all(self, asked: Sequence[tuple[str, str]], *, scenario: str) -> list[Answer]:
        """Questions of many users, each a session and a prompt; the answers in their order."""
        with ThreadPoolExecutor(AT_ONCE) as users:
            return list(users.map(lambda each: self.ask(each[0], each[1], scenario=scenario), asked))

    def report(self, answer: Answer, *, score: float, demonstration: str, scenario: str) -> None:
        """Say how it went, and what the answer should have been."""
        body = {"score": score, "feedback": {"demonstration": demonstration}, "references": [answer.receipt]}
        self.post("/reef/report", body, {"x-reef-scenario": scenario})

    def _send(self, path: str, body: Any, headers: dict[str, str]) -> tuple[Any, Any]:
        request = urllib.request.Request(self.url + path, data=None if body is None else json.dumps(body).encode(), headers=headers)  # noqa: S310 - our own gateway
        request.add_header("content-type", "application/json")
        if os.environ.get("REEF_TOKEN"):
            request.add_header("authorization", f"Bearer {os.environ['REEF_TOKEN']}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                return json.load(answer), answer.headers
        except urllib.error.HTTPError as error:
            raise DemoFailed(f"{path} answered {error.code}: {error.read().decode(errors='replace')[:500]}") from None


def wait_for(look: Callable[[], Any], what: str, *, bound_s: float) -> Any:
    """Look again and again until there is something."""
    deadline = time.monotonic() + bound_s
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(0.2)
    raise DemoFailed(f"waited {bound_s:.0f} s for {what}")
