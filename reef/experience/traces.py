"""Token traces as they are stored: what the prompt shares with the base record's tokens is left out.

An agent's prompt repeats all tokens of the conversation before it, so traces in full would cost O(n²) for a session of n turns. Stored are
little-endian 32-bit numbers, compressed: how many ids the base has in common, how many follow, how many were completed; then those ids, the
completed ids and their log-probabilities. Where a swap fell into the answer, a flag in the third number says that names follow: as JSON,
and behind it its length. Nearly no trace has them, and the bytes of one without are those of before there were any.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from typing import Any

import zstandard

from reef.experience.delta import alike
from reef.types import TokenTrace

_HEAD = struct.Struct("<III")
_SIZE = struct.Struct("<I")
_LEVEL = 3
_HAS_NAMES = 1 << 31


def pack(trace: TokenTrace, base: TokenTrace | None) -> bytes:
    """A trace as bytes."""
    shared = 0 if base is None else alike(trace.prompt_ids, base.prompt_ids + base.completion_ids)
    added = trace.prompt_ids[shared:]
    names = _names(trace)
    head = _HEAD.pack(shared, len(added), len(trace.completion_ids) | (_HAS_NAMES if names else 0))
    ids = array("I", added + trace.completion_ids)
    return zstandard.compress(head + _little(ids) + _little(array("f", trace.logprobs)) + names, _LEVEL)


def unpack(data: bytes, base: TokenTrace | None) -> TokenTrace:
    """The trace that :func:`pack` made bytes of, given the same base."""
    plain = zstandard.decompress(data)
    shared, added, completed = _HEAD.unpack_from(plain)
    names: dict[str, Any] = {}
    if completed & _HAS_NAMES:
        completed ^= _HAS_NAMES
        (size,) = _SIZE.unpack(plain[-_SIZE.size :])
        plain, text = plain[: -_SIZE.size - size], plain[-_SIZE.size - size : -_SIZE.size]
        names = {name: tuple(values) for name, values in json.loads(text).items()}
    numbers = len(plain) // 4 - 3
    ids = _read("I", plain[_HEAD.size : _HEAD.size + 4 * (added + completed)])
    logprobs = _read("f", plain[_HEAD.size + 4 * (added + completed) : _HEAD.size + 4 * numbers])
    below = (base.prompt_ids + base.completion_ids)[:shared] if base is not None else ()
    return TokenTrace((*below, *ids[:added]), tuple(ids[added:]), tuple(logprobs), **names)


def _names(trace: TokenTrace) -> bytes:
    if not trace.served:
        return b""
    text = json.dumps({"served": trace.served, "starts": trace.starts}, separators=(",", ":")).encode()
    return text + _SIZE.pack(len(text))


def _little(numbers: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _read(kind: Any, data: bytes) -> list[Any]:
    numbers = array(kind)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
