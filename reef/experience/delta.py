"""What a record adds to its base, and how the two give its turns again.

A delta is JSON: ``[copies, added, answer, response]``. A copy is ``[at, start, count]``: so many turns of the base's conversation (its
prompt and its answer) from ``start`` on stand in this prompt from ``at`` on. ``added`` are the turns for the places that are left, in
order. So a history that grew costs its new turns; and so does one that lost its oldest turns, or had one in the middle rewritten.
``answer`` holds the turns answered (null where the response has no place for any) and ``response`` the response without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reef.types import JSON

Copy = tuple[int, int, int]
"""at, start, count"""


def alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """With how many equal items two sequences begin. Slices are compared: that is one call for many items."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def copies(names: Sequence[bytes], base: Sequence[bytes]) -> list[Copy]:
    """What of a prompt stands in its base.

    Args:
        names: fingerprints of the prompt's turns.
        base: those of the base's conversation.
    """
    at = alike(names, base)
    found: list[Copy] = [(0, 0, at)] if at else []
    places = _places(base) if at < len(names) else {}
    while at < len(names):
        start = places.get(names[at])
        if start is None:
            at += 1
            continue
        count = 1
        while at + count < len(names) and start + count < len(base) and names[at + count] == base[start + count]:
            count += 1
        found.append((at, start, count))
        at += count
    return found


def _places(names: Sequence[bytes]) -> dict[bytes, int]:
    """Where each first stands."""
    return dict(zip(reversed(names), range(len(names) - 1, -1, -1), strict=True))


def added(copies: Sequence[Copy], count: int) -> list[int]:
    """The places of a prompt of ``count`` turns that are not copied."""
    found: list[int] = []
    at = 0
    for start, _, size in copies:
        found += range(at, start)
        at = start + size
    return [*found, *range(at, count)]


def put_together(copies: Sequence[Sequence[int]], added: Sequence[JSON], base: Sequence[JSON]) -> list[JSON]:
    """The turns of a prompt."""
    turns: list[JSON] = []
    fresh = iter(added)
    for at, start, count in copies:
        while len(turns) < at:
            turns.append(next(fresh))
        turns += base[start : start + count]
    turns.extend(fresh)
    return turns


def text(copies: Sequence[Copy], added: Sequence[bytes], answer: Sequence[bytes] | None, response: bytes) -> bytes:
    """A delta as it is stored, from JSON texts."""
    copied = b",".join([b"[%d,%d,%d]" % copy for copy in copies])
    answered = b"null" if answer is None else b"[" + b",".join(answer) + b"]"
    return b"[[" + copied + b"],[" + b",".join(added) + b"]," + answered + b"," + response + b"]"
