"""What a turn says, the same for every dialect: for people, and for models that read about a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from reef.experience import dialects
from reef.experience.turns import made_by_model
from reef.types import JSON, Record


class Kind(StrEnum):
    """Who says it, or what it is."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    REASONING = "reasoning"
    CALL = "call"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a turn says."""

    kind: Kind
    text: str
    name: str = ""
    """Of a call: the tool's."""


_ROLES = {"system": Kind.SYSTEM, "developer": Kind.SYSTEM, "assistant": Kind.ASSISTANT, "tool": Kind.RESULT, "function": Kind.RESULT}
_REASONING = ("reasoning", "reasoning_content")
"""Where a chat message has its reasoning, by provider."""
_THOUGHT = {"thinking": "thinking", "redacted_thinking": ""}
"""Blocks of reasoning, and where each has its text."""


def parts(turn: JSON) -> list[Part]:
    """What a turn says, in order."""
    if not isinstance(turn, dict):
        return [Part(Kind.USER, readable(turn))]
    if "role" not in turn and (item := _item(turn)) is not None:
        return [item]
    kind = _ROLES.get(str(turn.get("role")), Kind.USER)
    content = turn.get("content")
    found = [Part(Kind.REASONING, text) for key in _REASONING if isinstance(text := turn.get(key), str) and text]
    if isinstance(content, list):
        found += _blocks(content, kind)
    elif text := readable(content):
        found.append(Part(kind, text))
    if isinstance(refusal := turn.get("refusal"), str) and refusal:
        found.append(Part(kind, refusal))
    calls = turn.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(function := call.get("function") or call.get("custom"), dict):
            found.append(Part(Kind.CALL, readable(function.get("arguments", function.get("input"))), str(function.get("name"))))
    return found


def system_parts(record: Record) -> list[Part]:
    """What a request says beside its turns: `system` of the messages dialect, `instructions` of the responses dialect."""
    request = record.request if isinstance(record.request, dict) else {}
    found = (readable(request.get(key)) for key in ("system", "instructions"))
    return [Part(Kind.SYSTEM, text) for text in found if text]


def prompt(record: Record) -> list[JSON]:
    """The turns that were sent; of the system too, where they are among the others."""
    taken = dialects.named(record.dialect).take_prompt(record.request)
    return list(taken[0]) if taken else []


def answer(record: Record) -> list[JSON]:
    """The turns that were answered."""
    taken = dialects.named(record.dialect).take_answer(record.response)
    return list(taken[0]) if taken else []


def readable(value: JSON) -> str:
    """Text as it is, a list of parts by their texts, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(part, dict) and "type" in part for part in value):
        return "\n".join(str(part.get("text") or f"({part['type']})") for part in value).strip()
    return json.dumps(value, ensure_ascii=False)


def cut(text: str, bound: int, *, chars: int = 0) -> str:
    """At most about ``bound`` characters of a text. What is left out is in its middle, where the least is lost, and said.

    Args:
        chars: what the whole text had, if it was cut before.
    """
    if len(text) <= bound:
        return text
    head, tail = bound * 2 // 3, bound // 3
    return f"{text[:head]} [… {max(chars, len(text)) - head - tail} characters left out …] {text[len(text) - tail :]}"


def _item(item: Mapping[str, JSON]) -> Part | None:
    """An item of the responses dialect that is no message."""
    kind = str(item.get("type"))
    if kind == "reasoning":
        return Part(Kind.REASONING, readable(item.get("summary") or item.get("content")))
    if kind.endswith("_call_output"):
        return Part(Kind.RESULT, readable(item.get("output")))
    if made_by_model(item):
        said = item.get("arguments", item.get("input", item.get("action")))
        return Part(Kind.CALL, readable(said), str(item.get("name") or kind.removesuffix("_call")))
    return None


def _blocks(content: Iterable[JSON], kind: Kind) -> list[Part]:
    """Content blocks: the texts between calls and results together."""
    found: list[Part] = []
    texts: list[JSON] = []

    def flush() -> None:
        if text := readable(list(texts)):
            found.append(Part(kind, text))
        texts.clear()

    for block in content:
        part = _block(block)
        if part is None:
            texts.append(block)
            continue
        if texts:
            flush()
        found.append(part)
    if texts:
        flush()
    return found


def _block(block: JSON) -> Part | None:
    """A block that is no text."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        return None
    if kind in _THOUGHT:
        return Part(Kind.REASONING, readable(block.get(_THOUGHT[kind])))
    if kind.endswith("tool_use"):
        return Part(Kind.CALL, readable(block.get("input")), str(block.get("name")))
    if kind.endswith("tool_result"):
        return Part(Kind.RESULT, readable(block.get("content")))
    return None
