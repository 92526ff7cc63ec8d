"""Token traces as they are stored: what the prompt shares with the base record's tokens is left out.

An agent's prompt repeats all tokens of the conversation before it, so traces in full would cost O(n²) for a session of n turns. Stored are
little-endian 32-bit numbers, compressed: how many ids the base has in common, how many follow, how many were completed; then those ids, the
completed ids and their log-probabilities.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import zstandard

from reef.types import TokenTrace

_HEAD = struct.Struct("<III")
_LEVEL = 3


def pack(trace: TokenTrace, base: TokenTrace | None) -> bytes:
    """A trace as bytes."""
    shared = 0 if base is None else _shared(trace.prompt_ids, base.prompt_ids + base.completion_ids)
    added = trace.prompt_ids[shared:]
    head = _HEAD.pack(shared, len(added), len(trace.completion_ids))
    ids = array("I", added + trace.completion_ids)
    return zstandard.compress(head + _little(ids) + _little(array("f", trace.logprobs)), _LEVEL)


def unpack(data: bytes, base: TokenTrace | None) -> TokenTrace:
    """The trace that :func:`pack` made bytes of, given the same base."""
    plain = zstandard.decompress(data)
    shared, added, completed = _HEAD.unpack_from(plain)
    numbers = len(plain) // 4 - 3
    ids = _read("I", plain[_HEAD.size : _HEAD.size + 4 * (added + completed)])
    logprobs = _read("f", plain[_HEAD.size + 4 * (added + completed) : _HEAD.size + 4 * numbers])
    below = (base.prompt_ids + base.completion_ids)[:shared] if base is not None else ()
    return TokenTrace((*below, *ids[:added]), tuple(ids[added:]), tuple(logprobs))


def _shared(ids: Sequence[int], base: Sequence[int]) -> int:
    """Length of the common beginning."""
    low, high = 0, min(len(ids), len(base))
    while low < high:  # slices compare at the speed of C
        middle = (low + high + 1) // 2
        if ids[low:middle] == base[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


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
