"""The threads of a session: what its agent did, told apart from what happened beside it.

A session's records are requests that each carry a whole history. Those whose histories go on from each other are a thread. One of the
threads is the main one; requests for a title and other side calls are threads of one exchange, sub-agents those with more of their own.
Pure functions on records; turns are compared by what they mean (:func:`reef.experience.turns.canonical_turn`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from reef.experience import jsontext, telling
from reef.experience.ids import digest
from reef.experience.turns import canonical_turn, made_by_model
from reef.types import JSON, Record


class ThreadKind(StrEnum):
    """What a thread is in its session."""

    MAIN = "main"
    """The agent's own; a session with records has exactly one."""
    SIDE = "side call"
    """One exchange of its own, for a title or a check: no tools, or another system prompt than the main thread's."""
    AGENT = "sub-agent"
    """Several exchanges with an opening of their own, or one by an agent like the main one while that was at work."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One record in its thread."""

    record: Record
    position: int
    """Its place among the session's records, from 0."""
    system: tuple[JSON, ...]
    """The turns of the system that its prompt begins with."""
    new: tuple[JSON, ...]
    """The turns of its prompt that its thread had not seen; without the answer before, which the agent sends back."""
    answer: tuple[JSON, ...]
    retry_of: str | None
    """The receipt of the first try, where the same prompt was sent before."""
    rewritten: bool
    """It does not go on where the exchange before it stopped: the history was shortened, taken back, or begun anew."""


@dataclass(frozen=True, slots=True)
class Thread:
    """Exchanges that go on from each other, oldest first."""

    kind: ThreadKind
    exchanges: tuple[Exchange, ...]

    @property
    def last(self) -> Exchange:
        """The exchange that tells most: the last one that was answered, or the last."""
        return next((exchange for exchange in reversed(self.exchanges) if exchange.answer), self.exchanges[-1])

    @property
    def tries(self) -> int:
        """Exchanges without those that only repeat one."""
        return sum(exchange.retry_of is None for exchange in self.exchanges)


def threads(records: Sequence[Record]) -> tuple[Thread, ...]:
    """The threads of one session, in the order in which they began.

    Args:
        records: the session's, in the order they were stored. May be a part of them: what a thread had before is then new.
    """
    names = _Names()
    groups = _grouped([_Looked.at(record, position, names=names) for position, record in enumerate(records)])
    if not groups:
        return ()
    main = max(groups, key=_likely_main)
    groups = _with_what_followed(main, groups)
    return tuple(Thread(_kind(group, main), tuple(_exchanges(group))) for group in groups)


def main_thread(records: Sequence[Record]) -> Thread | None:
    """The agent's own thread; None where there are no records."""
    return next((thread for thread in threads(records) if thread.kind is ThreadKind.MAIN), None)


class _Names:
    """Digests of what turns mean. Records that were read together share their turns, so each of them is looked at once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[JSON, bytes]] = {}
        """By identity; the turn beside it keeps that its own."""

    def of(self, turn: JSON) -> bytes:
        """The name of a turn; empty for one that means nothing by itself."""
        known = self._known.get(id(turn))
        if known is None:
            meaning = canonical_turn(turn)
            known = self._known[id(turn)] = turn, b"" if meaning is None else digest(jsontext.dumps_sorted(meaning))
        return known[1]


@dataclass(slots=True)
class _Looked:
    """A record with what its turns mean."""

    record: Record
    position: int
    system: list[JSON]
    turns: list[JSON]
    answer: list[JSON]
    names: list[bytes]
    """Of the turns."""
    answered: list[bytes]
    agent: tuple[bytes, tuple[str, ...]]
    """The system prompt and the tools."""

    @classmethod
    def at(cls, record: Record, position: int, *, names: _Names) -> _Looked:
        prompt = telling.prompt(record)
        led = next((place for place, turn in enumerate(prompt) if not _of_the_system(turn)), len(prompt))
        system, turns = prompt[:led], [turn for turn in prompt[led:] if names.of(turn)]
        answer = telling.answer(record)
        beside = [part.text for part in telling.system_parts(record)]
        return cls(
            record=record,
            position=position,
            system=system,
            turns=turns,
            answer=answer,
            names=[names.of(turn) for turn in turns],
            answered=[name for turn in answer if (name := names.of(turn))],
            agent=(digest(jsontext.dumps([beside, [canonical_turn(turn) for turn in system]])), _tools(record)),
        )

    def alike(self, other: _Looked) -> bool:
        """Whether the same agent sent both; a system prompt with the time of day in it changes, but not the tools."""
        return self.agent[1] == other.agent[1] if self.agent[1] else self.agent == other.agent

    def goes_on_from(self, before: _Looked) -> int:
        """How many of its turns an earlier exchange had, where this is the next one of its thread, or a retry; else 0."""
        shared = _common(self.names, before.names)
        if shared < len(before.names):
            took_away = shared == len(before.names) - 1 and shared < len(self.names) and made_by_model(self.turns[shared])
            return shared if took_away and self.alike(before) else 0
        if len(self.names) == shared:  # the same prompt
            return shared if self.alike(before) else 0
        return shared if self.alike(before) or (self.agent[1] and before.agent[1]) else 0


@dataclass(slots=True)
class _Group:
    """A thread while it is put together."""

    found: list[_Looked] = field(default_factory=list)

    @property
    def prompts(self) -> int:
        """Different prompts, counting one sent several times in a row once."""
        return sum(not place or self.found[place - 1].names != item.names for place, item in enumerate(self.found))


def _grouped(looked: Sequence[_Looked]) -> list[_Group]:
    groups: list[_Group] = []
    by_opening: dict[bytes, list[_Group]] = defaultdict(list)
    for item in looked:
        alike = by_opening[item.names[0] if item.names else b""]
        best, most = None, 0
        for group in reversed(alike):
            if (shared := item.goes_on_from(group.found[-1])) > most:
                best, most = group, shared
        if best is None:
            best = _Group()
            groups.append(best)
            alike.append(best)
        best.found.append(item)
    return groups


def _likely_main(group: _Group) -> tuple[bool, bool, int]:
    """It has tools and goes on, and was there first."""
    first = group.found[0]
    return bool(first.agent[1]), group.prompts > 1, -first.position


def _with_what_followed(main: _Group, groups: Sequence[_Group]) -> list[_Group]:
    """Join to the main thread what the same agent began when that had come to its end: a shortened history, one taken back, a new task."""
    kept = []
    for group in groups:
        if group is not main and group.found[0].position > main.found[-1].position and group.found[0].alike(main.found[-1]):
            main.found.extend(group.found)
        else:
            kept.append(group)
    return kept


def _kind(group: _Group, main: _Group) -> ThreadKind:
    if group is main:
        return ThreadKind.MAIN
    first = group.found[0]
    like_main = bool(first.agent[1]) and first.agent == main.found[0].agent
    return ThreadKind.AGENT if group.prompts > 1 or like_main else ThreadKind.SIDE


def _exchanges(group: _Group) -> list[Exchange]:
    found: list[Exchange] = []
    before: _Looked | None = None
    first_try = ""
    for item in group.found:
        start, rewritten = 0, False
        again = before is not None and before.names == item.names
        if before is not None:
            start = _common(item.names, [*before.names, *before.answered])
            rewritten = not item.goes_on_from(before)
            if before.answer and not rewritten:  # the answer, as the agent wrote it
                while start < len(item.turns) and made_by_model(item.turns[start]):
                    start += 1
        if not again:
            first_try = item.record.id
        found.append(
            Exchange(
                record=item.record,
                position=item.position,
                system=tuple(item.system),
                new=tuple(item.turns[start:]),
                answer=tuple(item.answer),
                retry_of=first_try if again else None,
                rewritten=rewritten,
            )
        )
        before = item
    return found


def _of_the_system(turn: JSON) -> bool:
    return isinstance(turn, dict) and turn.get("role") in ("system", "developer")


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """How many names they begin with in common."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    return next(place for place in range(size) if one[place] != other[place])


def _tools(record: Record) -> tuple[str, ...]:
    """The names of the tools of a request, as far as it names them."""
    tools = record.request.get("tools") if isinstance(record.request, dict) else None
    found = []
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            function = tool.get("function")
            found.append(str((function if isinstance(function, dict) else tool).get("name") or tool.get("type")))
    return tuple(sorted(found))
