"""How much one token may ask for: requests in any minute, and requests at the same time. Counted in each gateway process by itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from reef.errors import TooManyRequests

WINDOW_S = 60.0


class Limits:
    """Counts the requests of one token. It belongs to the event loop: nothing here is locked.

    Args:
        requests_per_minute: at most so many begin in any 60 seconds; None: no bound.
        concurrent: at most so many are under way; None: no bound.
        clock: seconds that only go forward.
    """

    def __init__(
        self, *, requests_per_minute: int | None = None, concurrent: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_minute = requests_per_minute
        self._concurrent = concurrent
        self._clock = clock
        self._began: deque[float] = deque()
        self.under_way = 0

    def take(self) -> None:
        """Count a request that begins; :meth:`give` when it has ended.

        Raises:
            TooManyRequests: it is one too many. A request that is refused counts for nothing.
        """
        self._check()
        self.under_way += 1
        if self._per_minute is not None:
            self._began.append(self._clock())

    def give(self) -> None:
        """A request has ended."""
        self.under_way -= 1

    def _check(self) -> None:
        if self._concurrent is not None and self.under_way >= self._concurrent:
            raise TooManyRequests(
                f"this token may have {self._concurrent} requests under way at a time", hint="Wait for one to end.", retry_after_s=1
            )
        if self._per_minute is None:
            return
        now = self._clock()
        while self._began and self._began[0] <= now - WINDOW_S:
            self._began.popleft()
        if len(self._began) >= self._per_minute:
            wait_s = self._began[0] + WINDOW_S - now
            raise TooManyRequests(
                f"this token may send {self._per_minute} requests a minute",
                hint="Retry-After says when the next one is welcome.",
                retry_after_s=int(wait_s) + 1,
            )


class Unlimited(Limits):
    """For whoever has no limits: nothing is counted."""

    def take(self) -> None:
        """Nothing to count."""

    def give(self) -> None:
        """Nothing was counted."""


UNLIMITED: Limits = Unlimited()
