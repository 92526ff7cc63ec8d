"""The way of one request: which upstreams are tried, in which order, and what happens when one fails.

Nothing is tried again once an answer has begun: a client that read half an answer cannot be given another one.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from reef.config import UpstreamConfig
from reef.errors import TooManyRequests, UpstreamError, UpstreamTimeout
from reef.experience import jsontext
from reef.serving.upstream import Answer, Upstream
from reef.types import JSON

PLACEHOLDERS = frozenset({"reef", "default", ""})
"""Model names that mean "whatever is configured"; any other is the caller's own choice and is left alone."""
BACKOFF_S = 0.25
"""The wait before the first retry; it doubles with each."""


class Asked(Protocol):
    """What can be asked: an upstream, or a translator in front of one."""

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        """As :meth:`reef.serving.upstream.Upstream.post`."""


@dataclass(frozen=True, slots=True)
class Target:
    """One place to ask, and what to ask for there."""

    upstream: Upstream
    asked: Asked
    """The upstream, or what translates for it."""
    model: str = ""
    """The model that was chosen by an alias or by name; empty leaves it to the upstream's section and the caller."""

    def address(self, body: dict[str, JSON], raw: bytes) -> tuple[bytes, str]:
        """The bytes to send, and the model they ask for. The caller's bytes are left alone where its model is."""
        named = body.get("model")
        if model := self.other_model(named):
            return jsontext.dumps({**body, "model": model}), model
        return raw, named if isinstance(named, str) else ""

    def other_model(self, named: JSON) -> str:
        """The model to ask for instead of the one that the caller named; empty if that is just the one."""
        model = self.model
        if not model and (named is None or (isinstance(named, str) and named in PLACEHOLDERS)):
            model = self.upstream.model
        return model if model != named else ""


class Route:
    """Where the requests for one model go. Made once for each alias and dialect.

    Args:
        targets: at least one, in the order of trying.
    """

    __slots__ = ("_lone", "first", "targets")

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self.first = self.targets[0]
        lone = len(targets) == 1 and not self.first.upstream.config.retries
        self._lone = self.first.asked if lone else None

    @property
    def where(self) -> str:
        """Who is asked first."""
        return self.first.upstream.where

    @property
    def names(self) -> list[str]:
        """The upstreams that may be asked."""
        return [target.upstream.name for target in self.targets]

    @property
    def gives_tokens(self) -> bool:
        """Whether whoever answers can be asked for token ids and log-probabilities."""
        return all(target.upstream.GIVES_TOKENS and target.asked is target.upstream for target in self.targets)

    def passes_on(self, named: JSON) -> bool:
        """Whether the caller's bytes are sent as they are, and nothing else ever in their place."""
        return len(self.targets) == 1 and not self.first.other_model(named)

    def address(self, body: dict[str, JSON], raw: bytes) -> tuple[bytes, str]:
        """The bytes to send to the first, and the model they ask for."""
        return self.first.address(body, raw)

    def post(self, path: str, sent: bytes, *, body: dict[str, JSON], headers: Mapping[str, str], query: bytes = b"") -> Awaitable[Answer]:
        """Ask; the answer's head is there when this returns.

        Args:
            sent: the bytes for the first target, as :meth:`address` gave them.
            body: what the caller sent, from which those for the others are made.

        Raises:
            UpstreamError: none answered; it names every try.
            UpstreamTimeout: none answered in time.
            TooManyRequests: all of them refused for now.
        """
        if self._lone is not None:  # nearly always: no frame of ours in between
            return self._lone.post(path, sent, headers=headers, query=query)
        return self._try_all(path, sent, body=body, headers=headers, query=query)

    async def _try_all(self, path: str, sent: bytes, *, body: dict[str, JSON], headers: Mapping[str, str], query: bytes) -> Answer:
        failures: list[_Failure] = []
        lone = len(self.targets) == 1
        for target in self.targets:
            data, model = (sent, "") if target is self.first else target.address(body, b"")
            data = data or jsontext.dumps(body)
            attempt = 0
            wait_s: float | None = 0.0
            while wait_s is not None:
                await asyncio.sleep(wait_s)
                try:
                    answer = await target.asked.post(path, data, headers=headers, query=query)
                except UpstreamError as error:
                    failure = _Failure(target.upstream.name, error=error)
                    wait_s = _wait(attempt, failure, target.upstream.config)
                    if lone and wait_s is None:
                        raise
                else:
                    answer.model = model
                    if answer.status != 429 and answer.status < 500:
                        return answer
                    failure = _Failure(target.upstream.name, status=answer.status, retry_after_s=_retry_after(answer))
                    wait_s = _wait(attempt, failure, target.upstream.config)
                    if lone and wait_s is None:
                        return answer  # its last word is passed on as it is
                    answer.close()
                failures.append(failure)
                attempt += 1
        raise _nobody(failures)


@dataclass(frozen=True, slots=True)
class _Failure:
    """How one try failed."""

    name: str
    status: int = 0
    retry_after_s: float | None = None
    error: UpstreamError | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.error.message if self.error else f'answered {self.status}'}"


def _retry_after(answer: Answer) -> float | None:
    """When the upstream wants to be asked again: a number of seconds or a date."""
    for name, value in answer.headers():
        if name == b"retry-after":
            text = value.decode("latin-1").strip()
            try:
                return max(float(text), 0.0)
            except ValueError:
                pass
            try:
                return max(email.utils.parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
            except (ValueError, OverflowError):
                return None
    return None


def _wait(attempt: int, failure: _Failure, config: UpstreamConfig) -> float | None:
    """How long to wait before the next try; None where there is to be none, or the upstream wants more patience than there is."""
    if attempt >= config.retries:
        return None
    if failure.retry_after_s is not None:
        return failure.retry_after_s if failure.retry_after_s <= config.retry_wait_s else None
    return min(BACKOFF_S * 2**attempt * random.uniform(0.75, 1.25), config.retry_wait_s)  # noqa: S311 - spreads retries, hides nothing


def _nobody(failures: Sequence[_Failure]) -> UpstreamError | TooManyRequests:
    message = "no upstream answered: " + "; ".join(str(failure) for failure in failures)
    if all(failure.status == 429 for failure in failures):
        soonest = min((failure.retry_after_s for failure in failures if failure.retry_after_s is not None), default=1.0)
        return TooManyRequests(message, hint="All of them refuse for now; come again later.", retry_after_s=max(1, round(soonest)))
    kind = UpstreamTimeout if all(isinstance(failure.error, UpstreamTimeout) for failure in failures) else UpstreamError
    return kind(message, hint="`reef status` says which upstreams can be reached.")
