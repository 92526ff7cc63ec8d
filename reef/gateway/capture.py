"""Token capture: an upstream that can is asked for ids and log-probabilities, which are kept with the record and taken out of the answer.

Only where the recipe that learns needs them (`storage.tokens`), only in the chat dialect, and for one choice: vLLM gives them nowhere else.
The client sees what it asked for, as if nothing more had come; its bytes are the upstream's no longer, but written again event by event.
An engine of ours is asked besides which weights made which tokens: an answer bears the name of those that began it.

Source: vLLM's ``return_token_ids`` (https://docs.vllm.ai, "OpenAI-Compatible Server") and OpenAI's ``logprobs``.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

import structlog

from reef import plugins
from reef.config import Config
from reef.experience import jsontext
from reef.gateway import sse
from reef.serving.sync import spans
from reef.types import JSON, TokenTrace

log = structlog.get_logger()


def wanted(config: Config) -> bool:
    """Whether the recipe that learns needs tokens."""
    if config.storage.tokens != "auto":
        return config.storage.tokens == "always"
    try:
        return bool(getattr(plugins.load("reef.recipes", config.reef.recipe), "needs_tokens", False))
    except Exception as error:  # noqa: BLE001 - whatever a plugin does; without it exchanges are still worth recording
        log.error("no tokens are captured: the recipe does not load", recipe=config.reef.recipe, reason=str(error))
        return False


class Capture:
    """The tokens of one exchange.

    Args:
        request: as the client sent it.
    """

    def __init__(self, request: dict[str, JSON]) -> None:
        self._wants_ids = request.get("return_token_ids") is True
        self._wants_logprobs = request.get("logprobs") is True
        self._prompt: list[int] = []
        self._completion: list[int] = []
        self._logprobs: list[JSON] = []
        self._named: JSON = None
        self._spans: JSON = None
        self._rest = b""

    @staticmethod
    def can(dialect: str, request: dict[str, JSON]) -> bool:
        """Whether the tokens of such a request can be had."""
        return dialect == "chat" and request.get("n") in (None, 1)

    def ask(self, request: dict[str, JSON]) -> dict[str, JSON]:
        """The request that is sent on."""
        return {**request, "return_token_ids": True, "logprobs": True}

    @staticmethod
    def headers(passed: dict[str, str]) -> dict[str, str]:
        """The headers that it is sent on with."""
        return {**passed, spans.ASK: "1"}

    def take(self, answer: dict[str, JSON]) -> None:
        """Take the tokens out of an answer, or out of one chunk of a stream."""
        if isinstance(ids := answer.get("prompt_token_ids"), list):
            self._prompt = ids
        if not self._wants_ids:
            answer.pop("prompt_token_ids", None)
        if spans.KEY in answer:
            self._spans, self._named = answer.pop(spans.KEY), answer.get("model")
        choices = answer.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            if isinstance(ids := choice.get("token_ids"), list):
                self._completion += ids
            logprobs = choice.get("logprobs")
            if isinstance(logprobs, dict) and isinstance(tokens := logprobs.get("content"), list):
                self._logprobs += (token.get("logprob") if isinstance(token, dict) else None for token in tokens)
            if not self._wants_ids:
                choice.pop("token_ids", None)
            if not self._wants_logprobs and "logprobs" in choice:
                choice["logprobs"] = None

    def feed(self, chunk: bytes) -> bytes:
        """Take the tokens out of whatever arrived of a stream; give what of it can be passed on by now: whole lines."""
        lines, newline, self._rest = (self._rest + chunk).rpartition(b"\n")
        return b"".join(self._line(line) for line in (lines + newline).splitlines(keepends=True))

    def rest(self) -> bytes:
        """The end of a stream that ended within a line."""
        rest, self._rest = self._rest, b""
        return self._line(rest) if rest else b""

    def trace(self) -> TokenTrace | None:
        """What was captured; None if it is not whole."""
        if not self._prompt or len(self._completion) != len(self._logprobs):
            return None
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            logprobs = tuple(max(float(value), -3e38) for value in self._logprobs)  # vLLM says -inf where it is below a float32
            ids = (*self._prompt, *self._completion)
            if all(type(token) is int and 0 <= token < 2**32 for token in ids):
                return TokenTrace(ids[: len(self._prompt)], ids[len(self._prompt) :], logprobs, *self._served())
        return None

    def _served(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Which weights made it and where each began, unless they are just those that the answer names.

        Raises:
            TypeError: what was told is nothing of the kind.
            ValueError: or does not fit what was said.
        """
        if self._spans is None:
            return (), ()
        told = [(str(name), int(start)) for start, name in self._spans if start < max(len(self._completion), 1)]
        starts = [start for _, start in told]
        if starts[:1] != [0] or any(one >= other for one, other in pairwise(starts)):
            raise ValueError("spans that are none")
        if [name for name, _ in told] == [self._named]:
            return (), ()
        return tuple(name for name, _ in told), tuple(starts)

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:"):
            return line
        value: Any = None
        with contextlib.suppress(ValueError):
            value = jsontext.loads(line[5:])
        if not isinstance(value, dict):
            return line
        self.take(value)
        return b"data: " + jsontext.dumps(value) + line[len(line.rstrip(b"\r\n")) :]


class CapturingTap(sse.Tap):
    """The tap on a stream whose tokens are captured."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self._capture = capture

    def feed(self, chunk: bytes) -> bytes:
        return super().feed(self._capture.feed(chunk))

    def finish(self) -> None:
        if rest := self._capture.rest():
            super().feed(rest)
        super().finish()
