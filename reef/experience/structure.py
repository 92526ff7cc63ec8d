"""Which session a request belongs to when its client names none: told by what its history means.

A history is named by a chain of digests over its canonical turns. Where a record's prompt ended and where its answer ended is remembered;
the next request of the same run passes through both. What starts anew, or repeats a prompt that was answered, is a run of its own.

Some agents end every prompt with a turn that they take away again (OpenClaw: a user message about the moment). So the place before a last
turn that no model made is remembered too, its *stem*, but counts only where the next request goes on from there with what a model said:
several runs that begin alike, as with the rules of one project, have a stem in common and are not one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from reef.experience import ids, jsontext
from reef.experience.ids import digest, fingerprint
from reef.experience.known import Known
from reef.experience.reader import Conversation
from reef.experience.turns import canonical_turn, made_by_model
from reef.types import JSON, End, Record

RETRY_S = 600.0
"""How long after a failed exchange the same prompt is another try of it."""


class Mark(NamedTuple):
    """Where a known history ends."""

    session: str
    open_until: float
    """Until when the same prompt again belongs to the session, in Unix seconds: it was not answered, or it is an answer that ended here."""
    stem: bool = False
    """It ends before a prompt's last turn, which may be gone in the next."""


ANSWERED = float("inf")


class Stored(NamedTuple):
    """An exchange that was stored without a session of its client's."""

    session: str
    open_until: float
    """See :class:`Mark`."""
    conversation: Conversation


Recall = Callable[[bytes], Sequence[Stored]]
"""Of an opening: the exchanges stored last that began like this, the newest last."""


class Structure:
    """Finds sessions by structure.

    Args:
        recall: looks in the database, for what another process stored or this one forgot.
        remember: how many turns are remembered; and half as many places in histories, which is what the exchanges have that these turns
            came with.
    """

    def __init__(self, recall: Recall, *, remember: int = 50_000) -> None:
        self._recall = recall
        self._marks: Known[Mark] = Known(size=remember // 2)
        self._meanings: Known[bytes] = Known(size=remember)

    def session(self, record: Record, turns: Sequence[JSON], names: Sequence[bytes], answer: Sequence[JSON]) -> tuple[str, bytes]:
        """The session a record belongs to, and the name of its opening.

        Args:
            turns: of the prompt, without the system's.
            names: their fingerprints.
            answer: the turns answered.
        """
        chain = self._chain(record.scenario, turns, names)
        if not chain:
            return ids.session_id(), b""
        found, known = self._find(chain, turns, record.started_at)
        if found is None and not known:
            for stored in self._recall(chain[0]):
                prompt, answered = stored.conversation.prompt, stored.conversation.answer or ()
                self._remember(self._chain(record.scenario, prompt), prompt, answered, Mark(stored.session, stored.open_until))
            found, _ = self._find(chain, turns, record.started_at)
        session = found or ids.session_id()
        self._remember(chain, turns, answer, Mark(session, open_until(record.end, record.started_at)))
        return session, chain[0]

    def forget(self, names: Iterable[bytes]) -> None:
        """Forget what turns mean: those of a session that is forgotten, nearly none of which will come again."""
        for name in names:
            self._meanings.discard(name)

    def _find(self, chain: Sequence[bytes], turns: Sequence[JSON], now: float) -> tuple[str | None, bool]:
        """The session of the longest known history that this one carries on, and whether it is known to begin as another one did."""
        last = len(chain) - 1
        known = False
        for place in range(last, -1, -1):
            mark = self._marks.get(chain[place])
            if mark is None:
                continue
            if mark.stem:
                if place < last and made_by_model(turns[place + 1]):
                    return mark.session, True
                continue
            if place < last or mark.open_until >= now:
                return mark.session, True
            known = True
        return None, known  # nothing, or a prompt that was answered: a run that begins as another one did

    def _remember(self, chain: list[bytes], turns: Sequence[JSON], answer: Sequence[JSON], mark: Mark) -> None:
        if not chain:
            return
        self._mark(chain[-1], answer, mark)
        if len(chain) > 1 and not made_by_model(turns[-1]):
            self._mark(chain[-2], answer, mark._replace(stem=True))

    def _mark(self, end: bytes, answer: Sequence[JSON], mark: Mark) -> None:
        if not mark.stem or (there := self._marks.get(end)) is None or there.stem:  # a stem is the weaker evidence
            self._marks.add(end, mark)
        answered = self._chain("", answer, start=end)
        if answered and answered[-1] != end:
            self._marks.add(answered[-1], Mark(mark.session, ANSWERED))

    def _chain(self, scenario: str, turns: Sequence[JSON], names: Sequence[bytes] = (), *, start: bytes = b"") -> list[bytes]:
        """The names of a history after each of its turns."""
        chain = start or digest(scenario.encode())
        found = []
        for place, name in enumerate(names or [fingerprint(jsontext.dumps(turn)) for turn in turns]):
            meaning = self._meanings.get(name)
            if meaning is None:
                canonical = canonical_turn(turns[place])
                meaning = b"" if canonical is None else digest(jsontext.dumps_sorted(canonical))
                self._meanings.add(name, meaning)
            if meaning:
                chain = digest(chain + meaning)
            found.append(chain)
        return found


def open_until(end: End, started_at: float) -> float:
    """Until when the same prompt again is another try of an exchange."""
    return 0.0 if end is End.COMPLETE else started_at + RETRY_S
