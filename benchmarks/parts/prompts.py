"""The chat requests of the benchmark: a session as an agent has it, of a given size.

An agent sends its whole history with each request, so what is before the last message is the same within one run. The last message is
one that no other request has: nothing can be answered or stored from before.
"""

from __future__ import annotations

import json

MARK = "@@NUMBER@@"
"""Stands where each request gets a number of its own."""
SYSTEM = "You are a careful coding agent. Read before you write, and run the tests. "
USER = "Please look at this file and mend what is wrong with it, then say in one line what it was. "
ASSISTANT = "I read the file; the loop ends one step early, so the last line is never written. It is mended and the tests pass. "
MESSAGE_BYTES = 4096


def template(size_bytes: int, *, stream: bool, run: str) -> bytes:
    """A request body of ``size_bytes`` or a little more, with :data:`MARK` where the number goes.

    Args:
        run: names this run; its history is no other run's.
    """
    last = min(size_bytes // 2, MESSAGE_BYTES // 2)
    system = min(size_bytes // 4, 2 * MESSAGE_BYTES)
    messages = [{"role": "system", "content": _text(f"Session {run}. {SYSTEM}", system)}]
    rest = size_bytes - last - system - 150
    while rest > 0:
        user = len(messages) % 2 == 1
        kind, text = ("user", USER) if user else ("assistant", ASSISTANT)
        messages.append({"role": kind, "content": _text(f"{len(messages)}: {text}", min(rest, MESSAGE_BYTES))})
        rest -= MESSAGE_BYTES
    messages.append({"role": "user", "content": f"{MARK} {_text(USER, last)}"})
    return json.dumps({"model": "m", "messages": messages, "stream": stream}).encode()


def _text(sentence: str, size: int) -> str:
    return (sentence * (size // len(sentence) + 1))[:size]
