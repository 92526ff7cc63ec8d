"""Which session a request belongs to when its client names none: told by what its history means.

A history is named by a chain of digests over its canonical turns. Where a record's prompt ended and where its answer ended is remembered;
the next request of the same run passes through both. What starts anew, or repeats a prompt that was answered, is a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from reef.experience import ids, jsontext
from reef.experience.ids import digest
from reef.experience.known import Known
from reef.experience.reader import Conversation
from reef.experience.turns import canonical_turn
from reef.types import JSON, End, Record

RETRY_S = 600.0
"""How long after a failed exchange the same prompt is another try of it."""


class Mark(NamedTuple):
    """Where a known history ends."""

    session: str
    open_until: float
    """Until when the same prompt again belongs to the session, in Unix seconds: it was not answered, or it is an answer that ended here."""


ANSWERED = float("inf")

Recall = Callable[[bytes], tuple[str, Sequence[Conversation]] | None]
"""Of an opening: the session stored last that began like this, with its last exchanges."""


class Structure:
    """Finds sessions by structure.

    Args:
        recall: looks in the database, for what another process stored or this one forgot.
        remember: how many histories, and how many turns, are remembered.
    """

    def __init__(self, recall: Recall, *, remember: int = 50_000) -> None:
        self._recall = recall
        self._marks: Known[Mark] = Known(size=remember)
        self._meanings: Known[bytes] = Known(size=remember)

    def session(self, record: Record, turns: Sequence[JSON], names: Sequence[bytes], answer: Sequence[JSON]) -> tuple[str, bytes]:
        """The session a record belongs to, and the name of its opening.

        Args:
            turns: of the prompt, without the system's.
            names: their digests.
            answer: the turns answered.
        """
        chain = self._chain(record.scenario, turns, names)
        if not chain:
            return ids.session_id(), b""
        found = self._find(chain, record.started_at)
        if found is None and self._marks.get(chain[0]) is None and (stored := self._recall(chain[0])) is not None:
            session, histories = stored
            for history in histories:
                self._remember(self._chain(record.scenario, history.prompt), history.answer or (), Mark(session, 0.0))
            found = self._find(chain, record.started_at)
        session = found or ids.session_id()
        complete = record.end is End.COMPLETE
        self._remember(chain, answer, Mark(session, 0.0 if complete else record.started_at + RETRY_S))
        return session, chain[0]

    def _find(self, chain: Sequence[bytes], now: float) -> str | None:
        for place in range(len(chain) - 1, -1, -1):
            mark = self._marks.get(chain[place])
            carried_on = place < len(chain) - 1
            if mark is not None and (carried_on or mark.open_until >= now):
                return mark.session
        return None  # nothing, or a prompt that was answered: a run that begins as another one did

    def _remember(self, chain: list[bytes], answer: Sequence[JSON], mark: Mark) -> None:
        if not chain:
            return
        self._marks.add(chain[-1], mark)
        answered = self._chain("", answer, start=chain[-1])
        if answered:
            self._marks.add(answered[-1], Mark(mark.session, ANSWERED))

    def _chain(self, scenario: str, turns: Sequence[JSON], names: Sequence[bytes] = (), *, start: bytes = b"") -> list[bytes]:
        """The names of a history after each of its turns."""
        chain = start or digest(scenario.encode())
        found = []
        for place, turn in enumerate(turns):
            name = names[place] if names else digest(jsontext.dumps(turn))
            meaning = self._meanings.get(name)
            if meaning is None:
                canonical = canonical_turn(turn)
                meaning = b"" if canonical is None else digest(jsontext.dumps_sorted(canonical))
                self._meanings.add(name, meaning)
            if meaning:
                chain = digest(chain + meaning)
            found.append(chain)
        return found
