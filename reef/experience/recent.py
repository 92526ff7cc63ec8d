"""The last request of each agent. It sends its whole history with each, so the next one mostly begins as the last one did."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

MOST = 256
MOST_BYTES = 32 * 2**20
"""Of all requests that one :class:`Recent` remembers."""
SHORTEST, LONGEST = 16_000, 4 * 2**20
"""Of those that are: a shorter one is parsed as soon as it is compared."""
OPENING = 512
"""An agent that names no session is known by so many bytes that its request begins with; of two that begin alike, less is in common."""
STRIDE, FEW = 32_768, 128

T = TypeVar("T")
Agent = tuple[str, str | bytes]


def agent(request: bytes, *, scenario: str, session: str | None) -> Agent:
    """Whose request it is, as far as that can be told from so little."""
    return scenario, session or request[:OPENING]


class Recent(Generic[T]):
    """Something about the last request of each agent; when it becomes too much, of those that were silent for longest it is forgotten."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Agent, tuple[T, int]] = OrderedDict()
        self.bytes = 0
        """Of the requests that are remembered."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, agent: Agent) -> T | None:
        """What is remembered of an agent."""
        kept = self._kept.get(agent)
        return None if kept is None else kept[0]

    def put(self, agent: Agent, about: T, *, size: int) -> list[T]:
        """Remember something in place of what was there.

        Args:
            size: of the request, in bytes.

        Returns:
            What is forgotten for it, of other agents.
        """
        if (old := self._kept.pop(agent, None)) is not None:
            self.bytes -= old[1]
        self._kept[agent] = about, size
        self.bytes += size
        forgotten = []
        while len(self._kept) > MOST or (self.bytes > MOST_BYTES and len(self._kept) > 1):
            _, (oldest, less) = self._kept.popitem(last=False)
            self.bytes -= less
            forgotten.append(oldest)
        return forgotten


def common_beginning(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with alike."""
    view = memoryview(one)  # what is compared is not copied
    low, most = 0, min(len(one), len(other))
    while low < most and other.startswith(view[low : low + STRIDE], low):
        low += STRIDE
    low, high = min(low, most), min(low + STRIDE, most)
    while high - low > FEW:
        middle = (low + high) // 2
        if other.startswith(view[low:middle], low):
            low = middle
        else:
            high = middle
    differ = int.from_bytes(one[low:high], "big") ^ int.from_bytes(other[low:high], "big")
    return high - (differ.bit_length() + 7) // 8
