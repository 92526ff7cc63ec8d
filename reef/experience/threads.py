"""What the storing process remembers of the sessions under way: which turns are stored, and in which record.

A session is one run of an agent. Its *threads* are the histories it sends: the main one, those of sub-agents, of title requests and other
side calls. A thread is known by its newest record; the next request is compared with the threads of its session alone, so a session never
depends on another one and can be deleted as a whole. A client that names no session is known by what its history means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from reef.types import TokenTrace

MAX_THREADS = 16
"""Threads of one session that are remembered at least; those longest without a request are forgotten."""
MAX_DEPTH = 256
"""Records below a record. Beyond it a history is stored whole again, which bounds what it costs to read one."""


class Thread:
    """A history by its newest record."""

    __slots__ = ("_places", "depth", "names", "receipt", "tokens")

    def __init__(self, receipt: str, *, depth: int, names: Sequence[bytes], tokens: TokenTrace | None = None) -> None:
        self.receipt = receipt
        self.depth = depth
        self.tokens = tokens
        self.names = names
        """Digests of its turns: the prompt's, then the answer's."""
        self._places: dict[bytes, int] | None = None

    @property
    def places(self) -> dict[bytes, int]:
        """Where each turn first stands."""
        if self._places is None:
            self._places = {name: place for place, name in reversed(list(enumerate(self.names)))}
        return self._places


@dataclass(slots=True)
class Session:
    """The threads of one session, the one with the newest record last."""

    threads: list[Thread] = field(default_factory=list)
    _turns: set[bytes] = field(default_factory=set)
    """Turns of all threads, and for a while those of some that are forgotten: a request without any of them needs no comparing."""

    def __post_init__(self) -> None:
        self._collect()

    def nearest(self, names: Sequence[bytes]) -> tuple[Thread, int] | None:
        """The thread that shares most turns with a prompt, and how many; None if none shares any."""
        if self._turns.isdisjoint(names):
            return None
        best: tuple[Thread, int] | None = None
        for thread in reversed(self.threads):
            size = len(thread.names)
            grew = names[:size] == thread.names  # the usual case
            shared = size if grew else len(thread.places.keys() & set(names))
            if shared and (best is None or shared > best[1]):
                best = thread, shared
                if grew:
                    break
        return best

    def add(self, thread: Thread, *, after: Thread | None) -> None:
        """Remember a thread; in place of ``after``, which it carries on."""
        if after is not None:
            self.threads.remove(after)
        self.threads.append(thread)
        if len(self.threads) > 2 * MAX_THREADS:
            del self.threads[:MAX_THREADS]
            self._collect()
        else:
            self._turns.update(thread.names)

    def _collect(self) -> None:
        self._turns = {name for thread in self.threads for name in thread.names}


class Sessions:
    """The sessions used last, bounded by the number of turns they have.

    Two generations: when the young one is full it becomes the old one. Cheaper than an order of use, and as good at what it is for.
    """

    def __init__(self, *, turns: int) -> None:
        self._most = turns
        self._turns = 0
        self._young: dict[tuple[str, str], Session] = {}
        self._old: dict[tuple[str, str], Session] = {}

    def get(self, scenario: str, name: str) -> Session | None:
        """A session that is remembered."""
        key = scenario, name
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self._young[key] = found
            self._count(sum(len(thread.names) for thread in found.threads))
        return found

    def new(self, scenario: str, name: str, threads: Iterable[Thread] = ()) -> Session:
        """Begin to remember a session."""
        session = self._young[scenario, name] = Session(list(threads))
        self._count(1 + sum(len(thread.names) for thread in session.threads))
        return session

    def grew(self, turns: int) -> None:
        """Say that sessions remembered here have more turns now."""
        self._count(turns)

    def _count(self, turns: int) -> None:
        self._turns += turns
        if self._turns > self._most:
            self._old, self._young, self._turns = self._young, {}, 0
