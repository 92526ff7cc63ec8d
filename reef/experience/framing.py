"""Records as they travel from a gateway to the process that stores them.

A batch is its records one after the other. Each is a head, a JSON list of the record's fields in their order, and the JSON texts of its
request and its response, where it was read from some: they are neither written again nor copied. Of a request that begins as the last one
of the same agent did, only the rest travels.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import orjson

from reef.experience import dialects, jsontext, recent
from reef.experience.prompts import Text
from reef.experience.recent import Recent, common_beginning
from reef.experience.rope import Rope
from reef.types import End, Origin, Record, TokenTrace

SIZE = struct.Struct("!Q")
"""What stands before each message."""
AHEAD = 1 << 63
"""Added to the size of a message that is no batch but a request sent ahead."""
_HEAD = struct.Struct("!QQQqQQ")
"""The sizes of the fields, of the request's text and of the response's, 0 where it is among the fields; then where both ends remember the
request's text, how many texts were remembered there before it, and how much of the last of them stands before what is sent."""
_NOWHERE, _SENT_AHEAD = -1, -2
"""A text that is not remembered; one that was sent ahead, with its number in place of how many."""
_AHEAD = struct.Struct("!QqQQQ")
"""The number of a request sent ahead, the last three of :data:`_HEAD`, and the size of its dialect's name, which follows."""
MOST_AHEAD = 64
"""Requests sent ahead whose records have not come yet."""


class Ahead(NamedTuple):
    """A request that was sent before its record."""

    text: bytes
    encoder: Encoder
    number: int


Texts = tuple[bytes | Ahead | None, bytes | None]
"""The JSON texts of a record's request and response, as far as there are any."""

Buffer = bytes | bytearray | memoryview


def frame(data: bytes) -> bytes:
    """One message: its size, then itself."""
    return SIZE.pack(len(data)) + data


class Encoder:
    """Writes batches for one :class:`Decoder`, in the order in which that reads them.

    Both remember the last request of each agent. Of the next only what comes after their common beginning is sent.
    """

    def __init__(self) -> None:
        self._recent: Recent[_Place] = Recent()
        self._free = list(range(recent.MOST + 1))  # one is taken before another is given back
        self._counts = [0] * len(self._free)
        self._numbers = itertools.count()
        self._ahead: set[int] = set()

    def ahead(self, request: bytes, *, scenario: str, session: str | None, dialect: str) -> tuple[Ahead, list[bytes]] | None:
        """A request whose record will come later, and the message that sends it; None if too many are on their way."""
        if len(self._ahead) >= MOST_AHEAD:
            return None
        number = next(self._numbers)
        self._ahead.add(number)
        *where, rest = self._remember(request, scenario=scenario, session=session)
        name = dialect.encode()
        return Ahead(request, self, number), [_AHEAD.pack(number, *where, len(name)), name, rest]

    def encode(self, records: Sequence[Record], texts: Sequence[Texts] = ()) -> list[bytes]:
        """A batch, in pieces."""
        pairs = list(texts) or [(None, None)] * len(records)
        rows = [
            _row(record, *pair) for record, pair in zip(records, pairs, strict=True)
        ]  # may fail; what follows changes what is remembered
        pieces: list[bytes] = []
        for record, row, (request, response) in zip(records, rows, pairs, strict=True):
            place, count, shared, rest = self._sent(request, scenario=record.scenario, session=record.session)
            pieces += (_HEAD.pack(len(row), len(rest), len(response or b""), place, count, shared), row)
            pieces += filter(None, (rest, response))
        return pieces

    def _sent(self, request: bytes | Ahead | None, *, scenario: str, session: str | None) -> tuple[int, int, int, bytes]:
        """How a request is sent with its record."""
        if isinstance(request, Ahead):
            if request.encoder is self and request.number in self._ahead:
                self._ahead.discard(request.number)
                return _SENT_AHEAD, request.number, 0, b""
            request = request.text
        return self._remember(request, scenario=scenario, session=session) if request else (_NOWHERE, 0, 0, b"")

    def _remember(self, request: bytes, *, scenario: str, session: str | None) -> tuple[int, int, int, bytes]:
        """Remember a request in place of its agent's last one: where, after how many, how much the two have in common, and the rest."""
        if not recent.SHORTEST <= len(request) <= recent.LONGEST:
            return _NOWHERE, 0, 0, request
        agent = recent.agent(request, scenario=scenario, session=session)
        known = self._recent.get(agent)
        number, text = (self._free.pop(), b"") if known is None else (known.number, known.text)
        shared = min(common_beginning(text, request), len(request) - 1)  # something must be left to send
        self._free += [place.number for place in self._recent.put(agent, _Place(number, request), size=len(request))]
        count = self._counts[number]
        self._counts[number] += 1
        return number, count, shared, request[shared:]


class Decoder:
    """Reads what one :class:`Encoder` wrote."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, Text]] = {}
        """How many texts came to each, and the last of them."""
        self._ahead: dict[int, Text] = {}

    def read_ahead(self, message: Buffer) -> None:
        """Take a request that was sent ahead, and read it."""
        number, place, count, shared, of_name = _AHEAD.unpack_from(message)
        view = memoryview(message)[_AHEAD.size :]
        text = self._ahead[number] = self._text(view[of_name:], place=place, count=count, shared=shared)
        text.read_ahead(dialects.named(str(view[:of_name], "utf-8")))

    def decode(self, batch: Buffer) -> list[tuple[Record, Text | None] | str]:
        """The records of a batch, the request of those that came with its text being that text; in the place of one that cannot be read,
        the reason. It takes no other down.

        Raises:
            RuntimeError, KeyError: something of what the encoder wrote did not come; from now on its words may mean something else here.
        """
        found: list[tuple[Record, Text | None] | str] = []
        view = memoryview(batch)
        at = 0
        while at < len(view):
            of_row, of_request, of_response, place, count, shared = _HEAD.unpack_from(view, at)
            row = at + _HEAD.size
            request = row + of_row
            response = request + of_request
            at = response + of_response
            text = None
            if place == _SENT_AHEAD:
                text = self._ahead.pop(count)
            elif of_request:
                text = self._text(view[request:response], place=place, count=count, shared=shared)
            try:
                values = _read(view[row:request])
                if of_response:
                    values[_RESPONSE] = _read(view[response:at])
                found.append((_record(values), text))
            except ValueError as error:
                found.append(f"it cannot be read again: {error}")
        return found

    def _text(self, sent: memoryview, *, place: int, count: int, shared: int) -> Text:
        if place == _NOWHERE:
            return Text(Rope([bytes(sent)]))
        here, before = self._places.get(place, (0, None))
        if here != count:
            raise RuntimeError(f"{count} texts were sent to this place and {here} came")
        if before is None or not shared:
            text = Text(Rope([bytes(sent)]))
        else:
            text = Text(before.rope.begun(shared, bytes(sent)), before=before, shared=shared)
        self._places[place] = count + 1, text
        return text


@dataclass(frozen=True, slots=True)
class _Place:
    """The last request of an agent."""

    number: int
    text: bytes


def _read(text: memoryview) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return jsontext.loads(bytes(text))


def _row(record: Record, request: bytes | Ahead | None, response: bytes | None) -> bytes:
    """The fields of a record, without those that are sent as the texts that they were read from."""
    row = list[Any](record)
    if request:
        row[_REQUEST] = None
    if response:
        row[_RESPONSE] = None
    return _written(row)


def _written(row: list[Any]) -> bytes:
    try:
        return orjson.dumps(row)
    except TypeError:  # something orjson refuses and clients send all the same
        if row[_TOKENS] is not None:
            row[_TOKENS] = asdict(row[_TOKENS])
        try:
            return jsontext.dumps(row)
        except RecursionError:
            return b"it is nested too deeply"


def _record(found: list[Any]) -> Record:
    found[_ORIGIN] = _ORIGINS[found[_ORIGIN]]
    found[_END] = _ENDS[found[_END]]
    tokens = found[_TOKENS]
    if tokens is not None:
        found[_TOKENS] = TokenTrace(**{name: tuple(values) for name, values in tokens.items()})
    return Record._make(found)


_REQUEST, _RESPONSE = Record._fields.index("request"), Record._fields.index("response")
_ORIGIN, _END, _TOKENS = Record._fields.index("origin"), Record._fields.index("end"), Record._fields.index("tokens")
_ORIGINS = {origin.value: origin for origin in Origin}
_ENDS = {end.value: end for end in End}
