"""Tells the gateway's own share of an exchange's time from what it spends waiting for others."""

from __future__ import annotations

import time


class Stopwatch:
    """The time of one exchange.

    Args:
        start: when the request was there, on the clock of :func:`time.perf_counter`.
    """

    __slots__ = ("_away_s", "_away_since", "_start", "first_byte_ms")

    def __init__(self, start: float) -> None:
        self._start = start
        self._away_since = 0.0
        self._away_s = 0.0
        self.first_byte_ms: float | None = None

    @property
    def passed_ms(self) -> float:
        """All of the time so far."""
        return (time.perf_counter() - self._start) * 1000

    @property
    def own_ms(self) -> float:
        """The gateway's own share of it."""
        return ((self._away_since or time.perf_counter()) - self._start - self._away_s) * 1000

    def leave(self) -> float:
        """From here on it is the upstream that takes the time, or within a stream its client. The clock's time."""
        self._away_since = time.perf_counter()
        return self._away_since

    def back(self) -> None:
        """From here on it is the gateway."""
        if self._away_since:
            self._away_s += time.perf_counter() - self._away_since
            self._away_since = 0.0

    def note_first_byte(self) -> None:
        """The upstream's first byte is here."""
        self.first_byte_ms = self.passed_ms
