"""Sessions of the soak: what an agent sends turn after turn, in each dialect, and how it sees that an answer reached its end."""

from __future__ import annotations

import json
import random
from typing import Any

from benchmarks.parts.mock_upstream import PIECES, TEXT

MOST_TURNS = 12
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
ENDS = {"chat": b"data: [DONE]\n\n", "responses": b"event: response.completed\n", "messages": b"event: message_stop\n"}
"""What a stream that reached its end has near its end."""
PLACES = ("header", "url", "none")
"""Where a session is named."""
SYSTEM = "You are a careful coding agent. Read before you write, and run the tests. " * 8
ASK = "Please look at file {number} of this folder and mend what is wrong with it. " * 4


class Conversation:
    """One session. It ends after a few turns; about a third are of a single one."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.dialect = chance.choices(list(PATHS), weights=(2, 1, 1))[0]
        self.turns = 1 if chance.random() < 0.3 else chance.randint(2, MOST_TURNS)
        self._name = name
        self._place = chance.choice(PLACES)
        self._messages: list[dict[str, Any]] = []

    @property
    def path(self) -> str:
        """Where it is sent."""
        before = f"/s/default/{self._name}/v1" if self._place == "url" else "/v1"
        return before + PATHS[self.dialect]

    @property
    def headers(self) -> dict[str, str]:
        """Its own headers."""
        return {"x-reef-session": self._name} if self._place == "header" else {}

    def ask(self, number: int, *, model: str, stream: bool) -> dict[str, Any]:
        """The next request: all that was said, and one thing more."""
        self._messages.append({"role": "user", "content": ASK.format(number=number)})
        said = list(self._messages)
        if self.dialect == "responses":
            return {"model": model, "instructions": SYSTEM, "input": said, "stream": stream}
        if self.dialect == "messages":
            return {"model": model, "max_tokens": 1000, "system": SYSTEM, "messages": said, "stream": stream}
        return {"model": model, "messages": [{"role": "system", "content": SYSTEM}, *said], "stream": stream}

    def hear(self, *, stream: bool) -> None:
        """Take the mock's answer into the history, as an agent does."""
        text = TEXT[:16] * PIECES if stream else TEXT * 4
        content: Any = text
        if self.dialect == "responses":
            content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
        self._messages.append({"role": "assistant", "content": content})

    def take_back(self) -> None:
        """Forget the last question: nobody waited for its answer."""
        self._messages.pop()

    def ended(self, data: bytes, *, stream: bool) -> bool:
        """Whether an answer is whole."""
        if stream:
            return ENDS[self.dialect] in data[-2000:] and data.endswith(b"\n\n")
        return isinstance(json.loads(data), dict)
