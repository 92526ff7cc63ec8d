"""The turns of an agent's run as token sequences: those that extend each other become one, a fork begins another.

An agent sends its whole history with every request. Where the tokens of a prompt begin with all tokens of an exchange before it, the two
are one sequence, and what was generated in both trains in one forward pass. Where they do not (the history was edited or cut, thinking was
taken out of it, a tool call was rendered in another way, a sub-agent began) the turns train apart; nothing is tokenised again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reef.types import Record, TokenTrace


@dataclass(frozen=True, slots=True)
class Turn:
    """What one record generated, in a sequence."""

    record: Record
    start: int
    """Where its completion begins in the sequence's tokens."""
    logprobs: tuple[float, ...]

    @property
    def stop(self) -> int:
        """Where its completion ends."""
        return self.start + len(self.logprobs)


@dataclass(frozen=True, slots=True)
class Strand:
    """Tokens, and the turns in them, oldest first. What belongs to no turn is context."""

    tokens: tuple[int, ...]
    turns: tuple[Turn, ...]


def merge(records: Sequence[Record], *, together: bool = True) -> list[Strand]:
    """The sequences of one run. The tokens that a record generated are a turn of exactly one of them.

    A record extends the longest sequence that its prompt begins with the whole of. Of several records that extend the same one, the first
    does; the others are forks: sequences of their own, in which what came before is context and does not train twice.

    Args:
        records: with tokens, oldest first.
        together: False: every record is a sequence of its own.
    """
    found: list[Strand] = []
    for record in records:
        trace = record.tokens
        assert trace is not None, "only records with tokens can be merged"
        place = _extended(found, trace) if together else None
        before = found[place].turns if place is not None else ()
        turn = Turn(record, len(trace.prompt_ids), trace.logprobs)
        grown = Strand(trace.prompt_ids + trace.completion_ids, (*before, turn))
        if place is None:
            found.append(grown)
        else:
            found[place] = grown
    return found


def _extended(found: Sequence[Strand], trace: TokenTrace) -> int | None:
    """Which sequence a prompt goes on from; the newest of those that are equally long."""
    best = None
    for place, sequence in enumerate(found):
        size = len(sequence.tokens)
        if best is not None and size < len(found[best].tokens):
            continue
        if trace.prompt_ids[:size] == sequence.tokens:
            best = place
    return best
