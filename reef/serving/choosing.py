"""A choice among upstreams, learned from how their answers were judged: the part ``choose`` of a routing policy. Pure, and on the hot path.

For each arm a linear function of a few features of the request foretells what an answer is worth. The best arm gets a session, but for a
fixed share of the sessions, which are spread evenly over all arms. Which one that is hangs on a hash of salt and session alone: every
gateway decides alike, a session stays where it is, and whoever knows policy and record knows the chance with which the arm was drawn. So
that chance need not be written down to be on record, and what another policy would have earned can be told from the same records
(:mod:`reef.evaluation.off_policy`).

Features are taken of what stays as it is while a session goes on: the first message of the user, and whether there are tools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Self

import xxhash
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from reef.types import JSON

FEATURES = ("one", "length", "tools", "code", "question")
"""In this order. ``length`` is that of the first message of the user, on a scale where 100,000 letters are 1."""
_SCALE = 1.0 / math.log(100_000.0)
_ALL = 2.0**64

Weight = Annotated[float, Field(allow_inf_nan=False)]


class Arm(BaseModel):
    """One place to ask, by its model there: ``UPSTREAM/MODEL``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: tuple[Weight, ...] = Field((0.0,) * len(FEATURES), min_length=len(FEATURES), max_length=len(FEATURES))
    """What each of :data:`FEATURES` adds to what an answer is worth."""
    price_in: float = Field(0.0, ge=0, allow_inf_nan=False)
    """What a million prompt tokens cost."""
    price_out: float = Field(0.0, ge=0, allow_inf_nan=False)
    """What a million completion tokens cost."""


class Choice(BaseModel):
    """The part ``choose``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: dict[Annotated[str, StringConstraints(pattern=r"^[^/]+/.+$")], Arm] = Field(min_length=2, max_length=32)
    """In the order of preference where they are foretold to be worth the same."""
    explore: float = Field(1.0, gt=0, le=1)
    """The share of the sessions that is spread evenly over all arms."""
    salt: str = Field("", max_length=64)
    """Another one draws other sessions."""
    names: tuple[str, ...] = ()
    """Model names of callers that have it chosen for them, beside those that name none."""
    worth: float = Field(0.0, ge=0, allow_inf_nan=False)
    """How much score one unit of money is worth."""
    most_penalty: float = Field(0.25, ge=0, le=1)
    """The most that an answer's cost may take from its score."""

    @model_validator(mode="after")
    def _prices_where_they_count(self) -> Self:
        if self.worth and not any(arm.price_in or arm.price_out for arm in self.arms.values()):
            raise ValueError("worth needs prices: price_in and price_out of the arms")
        return self

    @cached_property
    def _linear(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        return tuple((name, arm.weights) for name, arm in self.arms.items())

    def __copy__(self) -> Self:
        """``model_copy`` keeps what was cached, and would go on choosing by the arms of before."""
        copied = super().__copy__()
        copied.__dict__.pop("_linear", None)
        return copied

    def best(self, features: Sequence[float]) -> str:
        """The arm that is foretold to be worth most."""
        best, most = "", -math.inf
        one, length, tools, code, question = features
        for name, weights in self._linear:  # unrolled: twice as fast as a sum over pairs
            worth = weights[0] * one + weights[1] * length + weights[2] * tools + weights[3] * code + weights[4] * question
            if worth > most:
                best, most = name, worth
        return best

    def pick(self, session: str, body: Mapping[str, JSON]) -> str:
        """The arm of a session. A request without one goes to the best: alone it could not be told apart from its like."""
        if session:
            drawn = xxhash.xxh3_64_intdigest(f"{self.salt}\n{session}".encode()) / _ALL
            if drawn < self.explore:
                return self._linear[min(int(drawn / self.explore * len(self._linear)), len(self._linear) - 1)][0]
        return self.best(features(body))

    def chances(self, features: Sequence[float]) -> dict[str, float]:
        """With which chance each arm gets a session."""
        chances = dict.fromkeys(self.arms, self.explore / len(self.arms))
        chances[self.best(features)] += 1.0 - self.explore
        return chances

    def reward(self, arm: str, *, score: float, prompt_tokens: int, completion_tokens: int) -> float:
        """What a session was worth, from ``-most_penalty`` to 1: its score, less what its cost is worth."""
        prices = self.arms[arm]
        cost = (prompt_tokens * prices.price_in + completion_tokens * prices.price_out) / 1e6
        return min(max(score, 0.0), 1.0) - min(self.worth * cost, self.most_penalty)


def features(body: Mapping[str, JSON]) -> tuple[float, ...]:
    """What a request is like: :data:`FEATURES`, in any of the dialects."""
    text = _first_words(body)
    return (
        1.0,
        math.log(1 + len(text)) * _SCALE,
        1.0 if body.get("tools") else 0.0,
        1.0 if "```" in text else 0.0,
        1.0 if "?" in text else 0.0,
    )


def _first_words(body: Mapping[str, JSON]) -> str:
    """The first message of the user."""
    messages = body.get("messages")
    if messages is None:
        messages = body.get("input")
        if isinstance(messages, str):
            return messages
    if not isinstance(messages, list):
        return ""
    for message in messages:
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            return _joined(content) if isinstance(content, list) else ""
    return ""


def _joined(parts: Sequence[JSON]) -> str:
    return "\n".join(text for part in parts if isinstance(part, dict) and isinstance(text := part.get("text"), str))
