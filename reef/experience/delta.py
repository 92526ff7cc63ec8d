"""What a record adds to its base, and how the two give its turns again.

A delta is JSON: ``[copies, added, answer, response]``. A copy is ``[at, start, count]``: so many turns of the base's conversation (its
prompt and its answer) from ``start`` on stand in this prompt from ``at`` on. ``added`` are the turns for the places that are left, in
order. So a history that grew costs its new turns; and so does one that lost its oldest turns, or had one in the middle rewritten.
``answer`` holds the turns answered (null where the response has no place for any) and ``response`` the response without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reef.types import JSON

Copy = tuple[int, int, int]
"""at, start, count"""


def copies(names: Sequence[bytes], base: Sequence[bytes], places: Mapping[bytes, int]) -> list[Copy]:
    """What of a prompt stands in its base.

    Args:
        names: fingerprints of the prompt's turns.
        base: those of the base's conversation.
        places: where in the base each of them first stands.
    """
    found: list[Copy] = []
    at = 0
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
