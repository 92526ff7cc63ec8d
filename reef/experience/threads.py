"""What the storing process remembers of the sessions under way: which turns are stored, and in which record.

A session is one run of an agent. Its *threads* are the histories it sends: the main one, those of sub-agents, of title requests and other
side calls. A thread is known by its newest record; the next request is compared with the threads of its session alone, so a session never
depends on another one and can be deleted as a whole. A client that names no session is known by what its history means.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reef.experience import delta
from reef.types import TokenTrace

MAX_THREADS = 16
"""Threads of one session that are remembered at least; those longest without a request are forgotten."""
MAX_DEPTH = 256
"""Records below a record. Beyond it a history is stored whole again, which bounds what it costs to read one."""

FEW = 64
"""Names of turns that are too few to look through for those that are forgotten."""


class Thread:
    """A history by its newest record."""

    __slots__ = ("depth", "names", "receipt", "tokens")

    def __init__(self, receipt: str, *, depth: int, names: Sequence[bytes], tokens: TokenTrace | None = None) -> None:
        self.receipt = receipt
        self.depth = depth
        self.tokens = tokens
        self.names = names
        """Fingerprints of its turns: the prompt's, then the answer's."""


class Nearest(NamedTuple):
    """The thread that shares most turns with a prompt."""

    thread: Thread
    begun: int
    """With how many of the same turns the two begin."""
    shared: int
    """How many the two have in common."""
    copies: Sequence[delta.Copy]
    """What of the prompt stands in the thread."""


@dataclass(slots=True)
class Session:
    """The threads of one session, the one with the newest record last."""

    threads: list[Thread] = field(default_factory=list)
    turns: int = 0
    """Of all its threads, and one for itself."""
    counted: int = 0
    """How many of them :class:`Sessions` knows of."""
    _names: set[bytes] = field(default_factory=set)
    """Of the turns of all threads, and for a while of some that are forgotten: a request without any of them needs no comparing."""

    def __post_init__(self) -> None:
        self._collect()

    @property
    def names(self) -> Iterable[bytes]:
        """Of the turns of all threads, and of most that were in one and are in none any more."""
        return self._names

    def nearest(self, names: Sequence[bytes]) -> Nearest | None:
        """The thread that shares most turns with a prompt; None if none shares any."""
        known = self._names.intersection(names)
        if not known:
            return None
        best: tuple[Thread, int, int] | None = None
        for thread in reversed(self.threads):
            begun = shared = delta.alike(names, thread.names)
            grew = begun == len(thread.names)  # the usual case
            if not grew:
                shared += len(set(names[begun:]).intersection(thread.names[begun:]))
            if shared and (best is None or shared > best[2]):
                best = thread, begun, shared
                if grew or shared >= len(known):  # no other shares more
                    break
        if best is None:
            return None
        thread, begun, shared = best
        if known.isdisjoint(names[begun:]):  # nearly always: what comes after is new
            return Nearest(thread, begun, shared, [(0, 0, begun)])
        return Nearest(thread, begun, shared, delta.copies(names, thread.names))

    def add(self, thread: Thread, *, after: Thread | None) -> None:
        """Remember a thread; in place of ``after``, which it carries on."""
        self.turns += len(thread.names)
        if after is not None:
            self.threads.remove(after)
            self.turns -= len(after.names)
        self.threads.append(thread)
        self._names.update(thread.names)
        if len(self.threads) > 2 * MAX_THREADS:
            del self.threads[:MAX_THREADS]
            self._collect()
        elif len(self._names) > 2 * self.turns + FEW:  # an agent that writes its history anew leaves some behind each time
            self._collect()

    def _collect(self) -> None:
        self._names = {name for thread in self.threads for name in thread.names}
        self.turns = 1 + sum(len(thread.names) for thread in self.threads)


class Sessions:
    """The sessions used last, bounded by the number of turns they have; the one in use is remembered however large it is."""

    def __init__(self, *, turns: int) -> None:
        self._most = turns
        self._turns = 0
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()

    def get(self, scenario: str, name: str) -> Session | None:
        """A session that is remembered."""
        key = scenario, name
        found = self._sessions.get(key)
        if found is not None:
            self._sessions.move_to_end(key)
        return found

    def new(self, scenario: str, name: str, threads: Iterable[Thread] = ()) -> Session:
        """Begin to remember a session; :meth:`grew` is to follow."""
        session = self._sessions[scenario, name] = Session(list(threads))
        return session

    def grew(self, session: Session) -> Sequence[Session]:
        """Say that a session has other turns now; returns those that are forgotten for it, which were not used for longest."""
        self._turns += session.turns - session.counted
        session.counted = session.turns
        forgotten = []
        while self._turns > self._most and len(self._sessions) > 1:
            _, oldest = self._sessions.popitem(last=False)
            self._turns -= oldest.counted
            forgotten.append(oldest)
        return forgotten
