"""Keeps streams alive while their upstream thinks: a comment now and then, so that nothing in between takes the connection for dead.

One sweep for all streams of a process. A request costs it an entry in a set, a piece of an answer one look at the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from starlette.types import Send

from reef.gateway.sse import Tap
from reef.gateway.wire import Headers

COMMENT = b": keep-alive\n\n"
LOOKS = 10
"""How often the sweep looks within the silence that calls for a comment; so much of it may pass too late."""


class Delivery:
    """A streamed answer on its way to the client, as the sweep sees it.

    Args:
        send: to the client.
        head: the headers of an answer whose upstream has said nothing yet.
    """

    __slots__ = ("_head", "_send", "begun", "breath", "silent_since", "tap")

    def __init__(self, send: Send, *, head: Callable[[], Headers]) -> None:
        self._send = send
        self._head = head
        self.begun = False
        """The head has left."""
        self.silent_since = 0.0
        """Since when the upstream is waited for, on the clock of :func:`time.perf_counter`; 0 while it is not."""
        self.tap: Tap | None = None
        """On the stream, once there is one."""
        self.breath: asyncio.Task[None] | None = None
        """A comment on its way. Nothing else may be sent before :meth:`settle`."""

    def breathe(self) -> None:
        """Send a comment, unless the last one still waits for the client or an event has left in part."""
        if (self.breath is None or self.breath.done()) and (self.tap is None or self.tap.between_events):
            self.silent_since = time.perf_counter()
            self.breath = asyncio.create_task(self._comment())

    def forget(self) -> None:
        """Let go of the exchange, which holds this: together they would wait for the collector, with all that was asked and answered."""
        self._head = list

    async def settle(self) -> None:
        """The upstream was heard, or is waited for no longer: wait for a comment that is on its way."""
        self.silent_since = 0.0
        if (breath := self.breath) is not None:
            self.breath = None
            await breath

    async def _comment(self) -> None:
        if not self.begun:
            self.begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._head()})
        await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})


class KeepAlive:
    """The sweep over all streams of a process.

    Args:
        after_s: the silence that calls for a comment; 0: none does.
    """

    def __init__(self, *, after_s: float) -> None:
        self._after_s = after_s
        self._deliveries: set[Delivery] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        if self._after_s:
            self._task = asyncio.create_task(self._sweep(), name="keep-alive")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def add(self, delivery: Delivery) -> None:
        """Look after a delivery."""
        self._deliveries.add(delivery)

    def remove(self, delivery: Delivery) -> None:
        """A delivery is at its end."""
        self._deliveries.discard(delivery)
        delivery.forget()
        if delivery.breath is not None:
            delivery.breath.cancel()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._after_s / LOOKS)
            long_ago = time.perf_counter() - self._after_s
            for delivery in self._deliveries:
                if 0 < delivery.silent_since <= long_ago:
                    delivery.breathe()
