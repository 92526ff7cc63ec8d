"""Which session a request belongs to where its client does not say so to us: the session headers that coding agents send of their own.

The order is: the base URL, ``x-reef-session``, these headers, and where there is none of them the structure of the history, which the
storing process looks at (:mod:`reef.experience.structure`).
"""

from __future__ import annotations

from collections.abc import Mapping

from reef.gateway.scenario_index import NAME

AGENTS_OWN = (
    b"x-claude-code-session-id",  # Claude Code
    b"session-id",  # Codex, and Pi where it speaks the responses dialect
    b"session_id",  # the same in their older versions
    b"thread-id",  # Codex
    b"x-session-id",  # OpenCode
    b"x-session-affinity",  # OpenCode
)
"""The first one that holds a name counts. Sub-agents and title requests carry their session's too."""


def agents_own_session(headers: Mapping[bytes, bytes]) -> str:
    """The session that an agent's own header names; empty where there is none. What is no name is passed over: it was not meant for us."""
    for header in AGENTS_OWN:
        value = headers.get(header)
        if value and NAME.fullmatch(name := value.decode("latin-1")):
            return name
    return ""
