"""Requests as the gateway reads them. Of a long one that goes on from its agent's last one, only what is new is parsed.

To parse a history of 100 kB takes a tenth of all the time that the gateway has for such a request, and nearly all of it was parsed before.
What is left out is known to be JSON by a *foothold*, a place in a text where a turn begins: cut off there and ended with ``null]}``, the
text was parsed, and that null was the last of the turns. So with whatever follows, every text that is the same up to there is JSON if
``{"turns":[`` is with it, and only then (RFC 8259; nothing that an array may hold next depends on what came before it).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from reef.experience import jsontext, recent
from reef.experience.recent import Recent, common_beginning
from reef.gateway import wire
from reef.types import JSON

FAR = 8192
"""Where two requests have more in common behind the last foothold, another one is looked for."""
MOST_FOOTHOLDS = 16
MOST_FAILURES = 4
"""So many places may turn out to be none; then this agent's requests are parsed as a whole."""
MOST_SPACES = 64
_TURNS = secrets.token_hex(8)
"""The key of the turns where only the end of a request is parsed: no caller knows it, so none has it a second time."""
_BEGUN, _ENDED = b'{"%b":[' % _TURNS.encode(), b"null]}"

Members = dict[str, JSON]


@dataclass(frozen=True, slots=True)
class _Foothold:
    """A place where a turn begins."""

    at: int
    members: Members
    """What stands before it, lists and objects emptied."""


@dataclass(slots=True)
class _Last:
    """The last request of an agent."""

    text: bytes
    key: str
    """Under which it has its turns."""
    opening: bytes = b""
    """The key that its last turn begins with; empty where there is none."""
    footholds: list[_Foothold] = field(default_factory=list)
    """In their order."""
    failures: int = 0
    """Places that were no footholds, in this and the requests before."""


class Reader:
    """Reads requests, and remembers the last one of each agent."""

    def __init__(self) -> None:
        self._recent: Recent[_Last] = Recent()

    def read(self, text: bytes, *, scenario: str, session: str, key: str) -> tuple[Members, bool]:
        """Read a request.

        Args:
            text: its body.
            session: as its client named it; empty where it did not.
            key: under which its dialect has the turns.

        Returns:
            All of it and True; or False, and its lists and objects are empty.

        Raises:
            InvalidRequest: it is not JSON, or not an object.
        """
        if not recent.SHORTEST <= len(text) <= recent.LONGEST:
            return wire.json_object(text), True
        agent = recent.agent(text, scenario=scenario, session=session)
        last = self._recent.get(agent)
        now = _Last(text, key)
        found = None if last is None or last.key != key else _go_on(last, now)
        if found is None:
            body = wire.json_object(text)
            now.opening = _opening(body.get(key))
        self._recent.put(agent, now, size=len(text))
        return (body, True) if found is None else (found, False)


def _go_on(last: _Last, now: _Last) -> Members | None:
    """Read a request from a foothold on; None if it must be read as a whole."""
    shared = common_beginning(last.text, now.text)
    now.opening, now.failures = last.opening, last.failures
    now.footholds = [foothold for foothold in last.footholds[-MOST_FOOTHOLDS:] if foothold.at <= shared]
    if shared - (now.footholds[-1].at if now.footholds else 0) > FAR:
        _find_foothold(now, before=shared)
    if not now.footholds:
        return None
    foothold = now.footholds[-1]
    try:
        rest = jsontext.loads(_BEGUN + now.text[foothold.at :])
    except ValueError:
        return None  # who parses all of it says what is wrong
    if not isinstance(rest, dict) or not rest.pop(_TURNS) or not rest.keys().isdisjoint(foothold.members):
        return None
    return foothold.members | _emptied(rest)


def _find_foothold(now: _Last, *, before: int) -> None:
    """Look for the last turn that begins before a place and behind the last foothold."""
    start, members, begun, key = 0, {}, b"", now.key
    if now.footholds:
        start, members, begun, key = now.footholds[-1].at, now.footholds[-1].members, _BEGUN, _TURNS
    for at in _openings(now, start, before):
        try:
            cut = jsontext.loads(begun + now.text[start:at] + _ENDED)
        except ValueError:
            cut = None
        if isinstance(cut, dict) and list(cut)[-1] == key and isinstance(turns := cut[key], list) and turns and turns[-1] is None:
            now.footholds.append(_Foothold(at, members or _emptied(cut)))
            return
        now.failures += 1


def _openings(now: _Last, start: int, end: int) -> Iterator[int]:
    """Where a turn may begin, from the last place on backwards."""
    while now.opening and now.failures < MOST_FAILURES and (end := now.text.rfind(now.opening, start, end)) > 0:
        lead = now.text[max(end - MOST_SPACES, start) : end].rstrip(b" \t\r\n")
        at = max(end - MOST_SPACES, start) + len(lead) - 1
        if lead.endswith(b"{") and at > start:
            yield at


def _opening(turns: JSON) -> bytes:
    """The key that the last of them begins with, as it is written."""
    if isinstance(turns, list) and turns and isinstance(turns[-1], dict) and turns[-1]:
        return jsontext.dumps(next(iter(turns[-1])))
    return b""


def _emptied(members: Members) -> Members:
    return {name: type(value)() if isinstance(value, list | dict) else value for name, value in members.items()}
