"""The requests that real coding agents sent, as they were captured beside this checkout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parents[3] / "shared" / "captures"
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


@dataclass(frozen=True, slots=True)
class Captured:
    """One request of a run."""

    run: str
    method: str
    path: str
    headers: dict[str, str]
    body: Any


def files() -> list[str]:
    """The names of all captures; none is an error and no reason to skip."""
    found = sorted(file.name for file in CAPTURES.glob("*.jsonl"))
    assert found, f"no captures in {CAPTURES}: lay the folder `shared` beside the checkout"
    return found


def read(name: str) -> Iterator[Captured]:
    """The requests of one capture in a dialect of the gateway, and those that ask whether it is there."""
    for line in (CAPTURES / name).read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        path = item["path"].partition("?")[0]
        if path in PATHS or item["method"] == "HEAD":
            headers = {header.lower(): value for header, value in item["headers"]}
            yield Captured(item["run"], item["method"], item["path"], headers, item["body"])
