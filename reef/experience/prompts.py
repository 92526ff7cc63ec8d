"""Requests as the storing process reads them: a text that goes on from an earlier one is read from where it differs.

The two begin alike, often nearly to their ends. The turns in there are known by their fingerprints, and parsed only if somebody asks for
them. See :mod:`reef.experience.outline` for when that is possible.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from reef.experience import jsontext
from reef.experience.dialects import Dialect
from reef.experience.ids import fingerprint
from reef.experience.outline import Outline, outline
from reef.experience.rope import Rope
from reef.types import JSON

OF_THE_SYSTEM = ("system", "developer")


class Text:
    """The JSON text of a request.

    Args:
        rope: the text.
        before: an earlier one, of the same agent.
        shared: with how many of the same bytes the two begin.
    """

    __slots__ = ("_before", "_read", "_shared", "prompt", "rope")

    def __init__(self, rope: Rope, *, before: Text | None = None, shared: int = 0) -> None:
        self.rope = rope
        self.prompt: Prompt | None = None
        """What was read of it; set by whoever stored it, for those that go on from it."""
        self._read: Prompt | None = None
        self._before = before
        self._shared = shared

    def parse(self) -> JSON:
        """All of it.

        Raises:
            ValueError: it is not JSON.
        """
        try:
            return jsontext.loads(self.rope.whole())
        except ValueError as error:
            raise ValueError(f"the request cannot be read again: {error}") from error

    def read_ahead(self, dialect: Dialect) -> None:
        """Do what :meth:`read` does before anybody waits for it."""
        with contextlib.suppress(ValueError):  # told to whoever reads it
            self._read = self.read(dialect)

    def read(self, dialect: Dialect) -> Prompt:
        """Take it apart, from where it differs from the one before if it can be.

        Raises:
            ValueError: it is not JSON.
        """
        ahead, self._read = self._read, None
        if ahead is not None and ahead.dialect is dialect:
            return ahead
        return self._go_on(dialect) or whole(self.parse(), dialect)

    def _go_on(self, dialect: Dialect) -> Prompt | None:
        """Read it from where it differs from the one before, which it lets go of; None if it is to be read as a whole."""
        before, self._before = self._before, None
        if before is None or before.prompt is None or before.prompt.dialect is not dialect:
            return None
        known = before.prompt
        old = known.outline_of(before.rope)
        same = -1 if old is None else old.last_in(self._shared)
        if old is None or same < known.led:
            return None
        new, rest = self.rope.behind(old.starts[same]), before.rope.behind(old.end)
        if len(new) <= len(rest) or not new.endswith(rest):  # more than its turns is new
            return None
        try:  # if this is a list then there is nothing but turns in it
            later = jsontext.loads(b"[%b]" % new[: -len(rest)])
        except ValueError:
            return None
        if not later or (same == known.led and led_by_system(later)):
            return None
        texts = [jsontext.dumps(turn) for turn in later]
        return Prompt(
            dialect=dialect,
            names=known.names[: same - known.led] + [fingerprint(text) for text in texts],
            led=known.led,
            system=known.system,
            envelope=known.envelope,
            outline=Outline(old.starts[: same + 1], self.rope.size - len(rest)),
            turns=Turns(later, unparsed=same - known.led, parse=lambda: self._turns(dialect, known.led)),
            texts=texts,
        )

    def _turns(self, dialect: Dialect, led: int) -> Sequence[JSON]:
        parts = dialect.take_prompt(self.parse())
        assert parts is not None
        return parts[0][led:]


@dataclass(slots=True)
class Prompt:
    """A request taken apart."""

    dialect: Dialect
    names: list[bytes]
    """Fingerprints of its turns, without those of the system that it begins with."""
    led: int
    """How many these are."""
    turns: Sequence[JSON] | None
    """None if the dialect finds none in the request; and later, see :meth:`shrink`."""
    texts: list[bytes]
    """The last of the turns, those that were parsed, as JSON."""
    system: bytes | None = None
    """The name of the blob that holds the system's turns."""
    envelope: bytes = b""
    """The name of the blob that holds the rest of the request."""
    unnamed: tuple[bytes, bytes] | None = None
    """What these blobs hold, until they have their names."""
    outline: Outline | None = None
    outlined: bool = False

    def text(self, place: int) -> bytes:
        """A turn as JSON."""
        assert self.turns is not None
        unparsed = len(self.names) - len(self.texts)
        return self.texts[place - unparsed] if place >= unparsed else jsontext.dumps(self.turns[place])

    def shrink(self) -> None:
        """Let go of the turns: what is left is for those who go on from here."""
        self.turns = self.unnamed = None
        self.texts = []

    def outline_of(self, text: Rope) -> Outline | None:
        """The outline of the text that this was read from."""
        turns = self.led + len(self.names)
        if self.outline is not None:
            self.outline.look_further(text, turns=turns)
        elif not self.outlined:
            self.outline = outline(text.whole(), self.dialect.key, turns=turns)
        self.outlined = True
        return self.outline


def whole(request: JSON, dialect: Dialect) -> Prompt:
    """Take a request apart, all of it."""
    turns, envelope = dialect.take_prompt(request) or (None, request)
    led = led_by_system(turns or ())
    system = jsontext.dumps(turns[:led]) if turns and led else b""
    own = turns[led:] if turns and led else turns
    texts = [jsontext.dumps(turn) for turn in own or ()]
    names = [fingerprint(text) for text in texts]
    return Prompt(dialect, names=names, led=led, turns=own, texts=texts, unnamed=(system, jsontext.dumps(envelope)))


class Turns(Sequence[JSON]):
    """Turns of which the first are parsed only when they are asked for.

    Args:
        later: the last ones.
        unparsed: how many there are before them.
        parse: gives all.
    """

    def __init__(self, later: Sequence[JSON], *, unparsed: int, parse: Callable[[], Sequence[JSON]]) -> None:
        self._turns = later
        self._unparsed = unparsed
        self._parse = parse

    def __len__(self) -> int:
        return self._unparsed + len(self._turns)

    @overload
    def __getitem__(self, place: int) -> JSON: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[JSON]: ...
    def __getitem__(self, place: int | slice) -> JSON:
        if isinstance(place, int) and self._unparsed <= place % max(len(self), 1):
            return self._turns[place % len(self) - self._unparsed]
        return self._all()[place]

    def __iter__(self) -> Iterator[JSON]:
        return iter(self._all())

    def _all(self) -> Sequence[JSON]:
        if self._unparsed:
            self._turns, self._unparsed = self._parse(), 0
        return self._turns


def led_by_system(turns: Sequence[JSON]) -> int:
    """How many turns of the system a prompt begins with: often long, and the same for many sessions."""
    for place, turn in enumerate(turns):
        if not isinstance(turn, dict) or turn.get("role") not in OF_THE_SYSTEM:
            return place
    return len(turns)
