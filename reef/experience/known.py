"""What was used last, in bounded memory."""

from __future__ import annotations

from typing import Generic, TypeVar

V = TypeVar("V")


class Known(Generic[V]):
    """Two generations of a plain dict: when the young one is full it becomes the old one.

    Cheaper than moving entries about in an LRU list for every message of every request, and as good at what it is for: what belongs to a
    session stays while the session is in use.
    """

    def __init__(self, *, size: int) -> None:
        self._size = size
        self._young: dict[bytes, V] = {}
        self._old: dict[bytes, V] = {}

    def get(self, key: bytes) -> V | None:
        """What was remembered for ``key``."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.add(key, value)
        return value

    def add(self, key: bytes, value: V) -> None:
        """Remember ``value``."""
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[key] = value
