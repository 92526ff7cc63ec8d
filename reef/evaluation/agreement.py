"""Whether two answers say the same, for want of somebody who knows which is better. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from reef.experience import telling
from reef.types import JSON


@dataclass(frozen=True, slots=True)
class Said:
    """What an answer comes to: what it says, and what it wants done."""

    text: str
    calls: tuple[tuple[str, str], ...]
    """Tools by name, with their arguments; key order and spaces do not count."""

    def __str__(self) -> str:
        return " ".join([self.text, *(f"{name}({arguments})" for name, arguments in self.calls)]).strip()


def said(turns: Sequence[JSON]) -> Said:
    """What the turns of an answer come to. Reasoning is left out: it is said to nobody."""
    parts = [part for turn in turns for part in telling.parts(turn)]
    text = "\n".join(part.text for part in parts if part.kind is telling.Kind.ASSISTANT)
    return Said(plain(text), tuple((part.name, _arguments(part.text)) for part in parts if part.kind is telling.Kind.CALL))


def plain(text: str) -> str:
    """A text by its words."""
    return " ".join(text.split())


def difference(recorded: Said, now: Said) -> str:
    """In what two answers differ; empty where they agree."""
    if [name for name, _ in recorded.calls] != [name for name, _ in now.calls]:
        return "other tool calls"
    if recorded.calls != now.calls:
        return "other arguments"
    return "" if recorded.text == now.text else "other text"


def _arguments(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
    except ValueError:
        return plain(text)
