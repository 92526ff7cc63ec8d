"""The turn tree: messages as nodes below the message they follow, so that what is sent again is the same node again.

A node's id is a digest over its parent's id and its exact body, so a prompt can be given back as it was sent. Beside it stands a
*canonical* id, the same chain over what the messages mean: an assistant message as it was answered and as the agent sends it back
(``refusal: null`` gone, one text block for a string, a ``cache_control`` marker moved, the reasoning or an item's id left out) share it.
Sessions merge, retries deduplicate and forks show by it. One canonical form serves all dialects, since a node belongs to none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from reef.experience import jsontext
from reef.experience.ids import digest
from reef.types import JSON

ROOT = b""
"""The parent of a first message."""
_TEXT_BLOCKS = frozenset({"text", "input_text", "output_text"})
_REASONING_BLOCKS = frozenset({"thinking", "redacted_thinking", "reasoning"})
_PASSING = frozenset({"id", "status", "reasoning", "reasoning_content", "reasoning_details"})
"""Keys of a turn itself that agents leave out when they send it back."""


class Turn(NamedTuple):
    """One node of the tree."""

    id: bytes
    parent: bytes
    canonical: bytes
    depth: int
    """1 for a first message."""
    body_digest: bytes
    body: bytes
    """The message as JSON text."""


class Known:
    """The most recently used node ids with their canonical ids, in bounded memory.

    Two generations of a plain dict: when the young one is full it becomes the old one. Cheaper than moving entries about in an LRU
    list for every message of every request, and as good at what it is for: a session's history stays while the session is in use.
    """

    def __init__(self, *, size: int) -> None:
        self._size = size
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """What was remembered for ``key``."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.add(key, value)
        return value

    def add(self, key: bytes, value: bytes) -> None:
        """Remember ``value``."""
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[key] = value


def grow(
    messages: Iterable[JSON], *, known: Known, parent: bytes = ROOT, canonical: bytes = ROOT, depth: int = 0
) -> tuple[bytes, bytes, int, list[Turn]]:
    """Put messages one below the other, starting under ``parent``.

    Returns:
        id, canonical id and depth of the last one, and the nodes that are not in ``known``.
    """
    fresh = []
    for message in messages:
        depth += 1
        body = jsontext.dumps(message)
        body_digest = digest(body)
        node = digest(parent + body_digest)
        seen = known.get(node)
        if seen is None:
            if (meaning := canonical_turn(message)) is not None:
                canonical = digest(canonical + jsontext.dumps_sorted(meaning))
            fresh.append(Turn(node, parent, canonical, depth, body_digest, body))
        else:
            canonical = seen
        parent = node
    return parent, canonical, depth, fresh


def canonical_turn(turn: JSON) -> JSON:
    """What a turn means; None for an item of reasoning, which some agents send back and some do not."""
    if isinstance(turn, str):  # the short form of `input` in the responses dialect
        return {"role": "user", "content": turn}
    if not isinstance(turn, dict):
        return canonical_message(turn)
    kind = turn.get("type")
    if kind == "reasoning":
        return None
    if kind == "item_reference":  # its id is all it says
        return turn
    if not _PASSING.isdisjoint(turn):
        turn = {key: value for key, value in turn.items() if key not in _PASSING}
    meaning = canonical_message(turn)
    if kind == "message":
        del meaning["type"]
    return meaning


def canonical_message(message: JSON) -> JSON:
    """What a message, or a part of one, means, without what moves or comes and goes between two sendings of it."""
    if isinstance(message, dict):
        kept = {}
        for key, value in message.items():
            if key == "cache_control":
                continue
            if type(value) is str:  # nearly all of them
                if value:
                    kept[key] = value
                continue
            meaning = canonical_message(value)
            if meaning is not None and meaning not in ("", []):
                kept[key] = meaning
        return kept
    if isinstance(message, list):
        message = [part for part in message if not (isinstance(part, dict) and _is_a(part, _REASONING_BLOCKS))]
        if len(message) == 1 and isinstance(message[0], Mapping) and (text := _only_text(message[0])) is not None:
            return text
        return [canonical_message(item) for item in message]
    return message


def _only_text(block: Mapping[str, JSON]) -> str | None:
    """The text of a content block that holds nothing else that counts."""
    if not _is_a(block, _TEXT_BLOCKS) or not isinstance(block.get("text"), str):
        return None
    rest = block.keys() - {"type", "text", "cache_control"}
    return None if any(block[key] not in (None, "", []) for key in rest) else block["text"]


def _is_a(block: Mapping[str, JSON], kinds: frozenset[str]) -> bool:
    kind = block.get("type")
    return isinstance(kind, str) and kind in kinds
