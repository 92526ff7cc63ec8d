"""What taking secrets out of a body costs, a byte: as Reef does it, searching for every anchor, and with one regular expression.

    python -m benchmarks.redaction

writes `benchmarks/results/redaction.csv`. The bodies hold no secret, as nearly all do.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import timeit
from collections.abc import Callable
from pathlib import Path

from reef import redaction

HERE = Path(__file__).parent
PROSE = "The task runner asks https://example.org/docs for a disk-based risk-analysis; see the bearer of news at noon.\n" * 1000
CODE = (HERE / "gateway.py").read_text() * 12
JOINED = re.compile(b"|".join(b"(?:%b)" % shape.pattern.pattern for shape in redaction.SHAPES))


def search_every_anchor(body: bytes) -> bytes:
    """The simplest thing: look for each anchor, try the shapes that may be there."""
    for shape in redaction.SHAPES:
        if shape.anchor in body:
            body = shape.pattern.sub(b"[redacted]", body)
    return body


def nanoseconds_a_byte(way: Callable[[bytes], bytes], body: bytes) -> float:
    """The best of five, since all that can disturb makes it slower."""
    times = max(1, 400_000 // len(body))
    return min(timeit.repeat(lambda: way(body), number=times, repeat=5)) / times / len(body) * 1e9


def main() -> None:
    """Measure, print and write."""
    ways = {"reef": redaction.redact, "every_anchor": search_every_anchor, "one_expression": lambda body: JOINED.sub(b"", body)}
    machine = f"{os.cpu_count()} cores / {platform.system()} / Python {platform.python_version()}"
    table = []
    for name, text in (("prose", PROSE), ("code", CODE)):
        for size_bytes in (300, 3_400, 10_000, 100_000):
            body = json.dumps({"role": "tool", "content": text}).encode()[:size_bytes]
            costs = {f"{way}_ns_per_byte": round(nanoseconds_a_byte(function, body), 2) for way, function in ways.items()}
            table.append({"body": name, "size_bytes": size_bytes, **costs, "machine": machine})
            print(table[-1])
    file = HERE / "results" / "redaction.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
