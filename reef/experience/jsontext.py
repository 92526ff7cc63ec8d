"""JSON text to values and back, without loss: key order, 64-bit integers, doubles, and what orjson refuses but real clients send.

orjson does the work. Where it refuses (a lone surrogate from a client that cut a string inside an emoji, nesting beyond 1,024) the
standard library takes over. An integer beyond 64 bits becomes the nearest double, as in every JavaScript client.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import orjson

from reef.types import JSON


def loads(text: bytes | str) -> JSON:
    """Parse one JSON value.

    Raises:
        ValueError: ``text`` is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as refusal:
        try:
            return json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except (ValueError, RecursionError):
            raise refusal from None


def dumps(value: JSON) -> bytes:
    """Write one JSON value, compact, keys in their order."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return _dumps_slowly(value, sort_keys=False)


def dumps_sorted(value: JSON) -> bytes:
    """Write one JSON value, compact, keys sorted: equal values give equal bytes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return _dumps_slowly(value, sort_keys=True)


def _dumps_slowly(value: Any, *, sort_keys: bool) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys, allow_nan=False).encode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is beyond a double")
    return number
