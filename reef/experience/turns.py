"""What turns mean, so that a turn is known again however it is sent.

An assistant message as it was answered and as the agent sends it back (``refusal: null`` gone, one text block for a string, a
``cache_control`` marker moved, the reasoning or an item's id left out) have the same canonical form. One form serves all dialects.
"""

from __future__ import annotations

from collections.abc import Mapping

from reef.types import JSON

_TEXT_BLOCKS = frozenset({"text", "input_text", "output_text"})
_REASONING_BLOCKS = frozenset({"thinking", "redacted_thinking", "reasoning"})
_PASSING = frozenset({"id", "status", "reasoning", "reasoning_content", "reasoning_details"})
"""Keys of a turn itself that agents leave out when they send it back."""
_CALL_IDS = frozenset({"id", "call_id", "tool_call_id", "tool_use_id"})
"""Some agents write the ids of calls anew, with the characters only that every provider takes."""
_PUNCTUATION = str.maketrans("", "", "_-.:|")
_NO_MODEL = frozenset({"user", "system", "developer", "tool", "function"})


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


def made_by_model(turn: JSON) -> bool:
    """Whether a turn is what a model said or called: an assistant's message, or such an item of the responses dialect."""
    if not isinstance(turn, dict):
        return False
    role = turn.get("role")
    if isinstance(role, str):
        return role not in _NO_MODEL
    kind = turn.get("type")
    return isinstance(kind, str) and (kind == "reasoning" or kind.endswith("_call"))


def canonical_message(message: JSON) -> JSON:
    """What a message, or a part of one, means, without what moves or comes and goes between two sendings of it."""
    if isinstance(message, dict):
        kept = {}
        for key, value in message.items():
            if key == "cache_control":
                continue
            if type(value) is str:  # nearly all of them
                if value:
                    kept[key] = value.translate(_PUNCTUATION) if key in _CALL_IDS else value
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
