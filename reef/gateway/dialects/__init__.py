"""The dialects that agents speak, as the gateway sees them: one small object each.

A dialect knows its path, how its errors look, what ends its streams, and how the events of a stream make up the whole answer. Where the
turns stand in its bodies is told in :mod:`reef.experience.dialects`, since the store must know it without a gateway.
"""

from __future__ import annotations

from reef.gateway.dialects.chat import CHAT
from reef.gateway.dialects.dialect import Dialect
from reef.gateway.dialects.messages import COUNT_TOKENS, MESSAGES
from reef.gateway.dialects.responses import RESPONSES

ALL = (CHAT, RESPONSES, MESSAGES)
BY_PATH = {dialect.path: dialect for dialect in ALL}

__all__ = ["ALL", "BY_PATH", "CHAT", "COUNT_TOKENS", "MESSAGES", "RESPONSES", "Dialect"]
