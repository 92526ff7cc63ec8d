"""What was used last, in bounded memory."""

from __future__ import annotations

from typing import Generic, TypeVar

V = TypeVar("V")

PARTS = 4
"""Generations. Of ``size`` entries the last three quarters are sure to be there; with two generations it would be half."""


class Known(Generic[V]):
    """A few generations of plain dicts: when the youngest is full the oldest is forgotten. Never more than ``size`` entries.

    Cheaper than moving entries about in an LRU list for every message of every request, and as good at what it is for: what belongs to a
    session stays while the session is in use. What is found in an older generation moves to the youngest: an entry is held once.
    """

    def __init__(self, *, size: int) -> None:
        self._most = max(size // PARTS, 1)
        self._young: dict[bytes, V] = {}
        self._older: tuple[dict[bytes, V], ...] = ({},) * (PARTS - 1)

    def __len__(self) -> int:
        return len(self._young) + sum(map(len, self._older))

    def get(self, key: bytes) -> V | None:
        """What was remembered for ``key``."""
        value = self._young.get(key)
        if value is None:
            for part in self._older:
                if (value := part.pop(key, None)) is not None:
                    self.add(key, value)
                    break
        return value

    def add(self, key: bytes, value: V) -> None:
        """Remember ``value``."""
        if len(self._young) >= self._most:
            self._young, self._older = {}, (self._young, *self._older[:-1])
        self._young[key] = value

    def discard(self, key: bytes) -> None:
        """Forget one."""
        self._young.pop(key, None)
        for part in self._older:
            part.pop(key, None)
