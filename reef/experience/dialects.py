"""Where the turns stand in a request and in an answer, dialect by dialect.

A dialect takes a body apart into turns and an envelope, and puts them together again. The envelope is the body with a placeholder where
the turns stood, so that its keys keep their order; system text, tools and parameters stay in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from reef.types import JSON

Parts = tuple[Sequence[JSON], JSON]
"""Turns, and the envelope they were taken from."""


class Dialect(Protocol):
    """One dialect as the store sees it. ``take`` gives None for a body without turns: it is kept whole in its envelope."""

    name: str
    key: str
    """Under which a request has its turns."""

    def take_prompt(self, request: JSON) -> Parts | None:
        """The turns of a request."""

    def put_prompt(self, envelope: JSON, turns: list[JSON]) -> None:
        """Put the turns of a request back."""

    def take_answer(self, response: JSON) -> Parts | None:
        """The turns of an answer."""

    def put_answer(self, envelope: JSON, turns: list[JSON]) -> None:
        """Put the turns of an answer back."""


class Chat:
    """``/v1/chat/completions``: ``messages``, and the message of the first choice."""

    name = "chat"
    key = "messages"

    def take_prompt(self, request: JSON) -> Parts | None:
        return _take_list(request, self.key)

    def put_prompt(self, envelope: JSON, turns: list[JSON]) -> None:
        envelope["messages"] = turns

    def take_answer(self, response: JSON) -> Parts | None:
        choices = response.get("choices") if isinstance(response, dict) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return None
        first, *others = choices
        message = first.get("message")
        if not isinstance(message, dict):
            return None
        return (message,), {**response, "choices": [{**first, "message": None}, *others]}

    def put_answer(self, envelope: JSON, turns: list[JSON]) -> None:
        envelope["choices"][0]["message"] = turns[0]


class Messages:
    """``/v1/messages``: ``messages``, and an answer that is itself a message. ``system`` stays in the envelope."""

    name = "messages"
    key = "messages"

    def take_prompt(self, request: JSON) -> Parts | None:
        return _take_list(request, self.key)

    def put_prompt(self, envelope: JSON, turns: list[JSON]) -> None:
        envelope["messages"] = turns

    def take_answer(self, response: JSON) -> Parts | None:
        if not isinstance(response, dict) or not isinstance(response.get("role"), str) or not isinstance(response.get("content"), list):
            return None
        turn = {"role": response["role"], "content": response["content"]}  # as the client will send it back
        return (turn,), {**response, "role": None, "content": None}

    def put_answer(self, envelope: JSON, turns: list[JSON]) -> None:
        envelope.update(turns[0])


class Responses:
    """``/v1/responses``: the items of ``input`` and of ``output``. ``instructions`` stays in the envelope."""

    name = "responses"
    key = "input"

    def take_prompt(self, request: JSON) -> Parts | None:
        text = request.get("input") if isinstance(request, dict) else None
        if isinstance(text, str) and text:
            return (text,), {**request, "input": ""}  # this placeholder says that it was no list
        return _take_list(request, self.key)

    def put_prompt(self, envelope: JSON, turns: list[JSON]) -> None:
        envelope["input"] = turns[0] if envelope["input"] == "" else turns

    def take_answer(self, response: JSON) -> Parts | None:
        return _take_list(response, "output")

    def put_answer(self, envelope: JSON, turns: list[JSON]) -> None:
        envelope["output"] = turns


CHAT, MESSAGES, RESPONSES = Chat(), Messages(), Responses()
_KNOWN: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (CHAT, MESSAGES, RESPONSES)}


def named(name: str) -> Dialect:
    """The dialect of that name. One that is not known has its turns where chat has them, if anywhere."""
    return _KNOWN.get(name, CHAT)


def token_counts(response: JSON) -> dict[str, int]:
    """The whole numbers of a response's ``usage``, with ``prompt_tokens``, ``completion_tokens`` and ``cached_tokens`` in every dialect."""
    usage = response.get("usage") if isinstance(response, dict) else None
    if not isinstance(usage, dict):
        return {}
    counts = {name: count for name, count in usage.items() if type(count) is int and 0 <= count < 2**63}
    cached = counts.get("cache_read_input_tokens", 0)
    if "input_tokens" in counts:  # Anthropic counts what came from its cache, or went there, beside it
        read = counts["input_tokens"] + counts.get("cache_creation_input_tokens", 0) + cached
        counts.setdefault("prompt_tokens", min(read, 2**63 - 1))
    if "output_tokens" in counts:
        counts.setdefault("completion_tokens", counts["output_tokens"])
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict) and type(found := details.get("cached_tokens")) is int and 0 <= found < 2**63:
            cached = found
    if cached:
        counts.setdefault("cached_tokens", cached)
    return counts


def _take_list(body: JSON, key: str) -> Parts | None:
    found = body.get(key) if isinstance(body, dict) else None
    return (found, {**body, key: None}) if isinstance(found, list) and found else None
