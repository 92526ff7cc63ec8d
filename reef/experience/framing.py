"""Records as they travel from a gateway to the process that stores them.

A batch is its records one after the other. Each is a head of three sizes, a JSON list of the record's fields in their order, and the JSON
texts of its request and its response, where it was read from some: they are neither written again nor copied, only parsed once more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import asdict, fields
from itertools import repeat
from operator import attrgetter
from typing import Any

import orjson

from reef.experience import jsontext
from reef.types import End, Origin, Record, TokenTrace

SIZE = struct.Struct("!Q")
"""What stands before each message."""
_SIZES = struct.Struct("!QQQ")
"""Of the fields, the request's text and the response's; 0 where it is among the fields."""

Texts = tuple[bytes | None, bytes | None]
"""The JSON texts of a record's request and response, as far as there are any."""

Buffer = bytes | bytearray | memoryview


def frame(data: bytes) -> bytes:
    """One message: its size, then itself."""
    return SIZE.pack(len(data)) + data


def encode(records: Sequence[Record], texts: Sequence[Texts] = ()) -> list[bytes]:
    """A batch, in pieces."""
    pieces: list[bytes] = []
    for record, (request, response) in zip(records, texts or repeat((None, None)), strict=bool(texts)):
        row = list(_fields(record))
        if request:
            row[_REQUEST] = None
        if response:
            row[_RESPONSE] = None
        written = _written(row)
        pieces += (_SIZES.pack(len(written), len(request or b""), len(response or b"")), written)
        pieces += filter(None, (request, response))
    return pieces


def decode(batch: Buffer) -> list[Record | str]:
    """The records of a batch; in the place of one that cannot be read, the reason. It takes no other down."""
    found: list[Record | str] = []
    view = memoryview(batch)
    at = 0
    while at < len(view):
        of_row, of_request, of_response = _SIZES.unpack_from(view, at)
        row = at + _SIZES.size
        request = row + of_row
        response = request + of_request
        at = response + of_response
        try:
            values = _read(view[row:request])
            if of_request:
                values[_REQUEST] = _read(view[request:response])
            if of_response:
                values[_RESPONSE] = _read(view[response:at])
            found.append(_record(values))
        except ValueError as error:
            found.append(f"it cannot be read again: {error}")
    return found


def _read(text: memoryview) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return jsontext.loads(bytes(text))


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
    return Record(*found)


_NAMES = [field.name for field in fields(Record)]
_fields = attrgetter(*_NAMES)
_REQUEST, _RESPONSE = _NAMES.index("request"), _NAMES.index("response")
_ORIGIN, _END, _TOKENS = _NAMES.index("origin"), _NAMES.index("end"), _NAMES.index("tokens")
_ORIGINS = {origin.value: origin for origin in Origin}
_ENDS = {end.value: end for end in End}
