"""Which session and release a request belongs to: what its client says, and where it does not say so to us, the session headers that coding
agents send of their own.

The order is: the base URL, ``x-reef-session``, these headers, and where there is none of them the structure of the history, which the
storing process looks at (:mod:`reef.experience.structure`).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping

from reef.config import ENGINE, JUDGE
from reef.errors import InvalidRequest, NotFound
from reef.gateway.scenario_index import NAME
from reef.types import JSON

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


RELEASE = "^([1-9][0-9]{0,8}|c-[0-9a-f]{12})$"
"""What ``x-reef-release`` looks like, for those who send it."""
_CANDIDATE = re.compile(rb"c-[0-9a-f]{12}")
_CANDIDATES_WEIGHTS = re.compile(r"\.c-[0-9a-f]{12}$")


def release_of(header: bytes | None) -> tuple[int | None, str | None]:
    """What ``x-reef-release`` says that the client runs: the step of a release, or a candidate on canary.

    Raises:
        InvalidRequest: it is neither.
    """
    if header is None:
        return None, None
    if header.isdigit() and 0 < int(header[:12]) < 2**31:
        return int(header), None
    if _CANDIDATE.fullmatch(header):
        return None, header.decode()
    raise InvalidRequest(
        f"x-reef-release must be a whole number or a candidate, not {header[:40].decode('latin-1')!r}",
        hint="It is the step of the release that runs, or the id of the candidate on canary.",
    )


def check_model(model: JSON) -> None:
    """Refuse a user's request that names a candidate's weights: only trials reach what is not judged yet, and who is drawn for a canary.

    Raises:
        NotFound: it does.
    """
    if isinstance(model, str) and ".c-" in model and _CANDIDATES_WEIGHTS.search(model):
        raise NotFound(f"the model {model} does not exist", hint="A candidate's weights serve nobody before they are released.")


def check_weights(model: str, *, scenario: str, scenarios: Container[str], asked: Iterable[str]) -> None:
    """Refuse a user's request that names the released weights of another scenario than its own: they are made of that one's traffic.

    Args:
        model: as it is named.
        scenario: that the request belongs to.
        scenarios: all that there are.
        asked: the names of the upstreams that may answer it. Only Reef's own engines call weights ``<scenario>.<step>``.

    Raises:
        NotFound: it does.
    """
    whose, _, step = model.rpartition(".")
    if not (step.isascii() and step.isdecimal()):
        return
    upstream, slash, rest = whose.partition("/")
    whose = rest if slash and upstream in (ENGINE, JUDGE) else whose
    if whose != scenario and whose in scenarios and not {ENGINE, JUDGE}.isdisjoint(asked):
        raise NotFound(f"the model {model} does not exist", hint="A scenario is answered by weights of its own releases alone.")
