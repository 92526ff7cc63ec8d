"""The hash chain: each release carries a digest over itself and the digest of the release before. Pure functions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from reef.types import Release

GENESIS = ""
"""``previous_hash`` of a scenario's first release."""


def seal(**fields: Any) -> Release:
    """A release whose hash fits its other fields."""
    release = Release(**fields, hash="")
    return dataclasses.replace(release, hash=digest(release))


def digest(release: Release) -> str:
    """Hex SHA-256 over the canonical JSON of every field but ``hash``."""
    fields = dataclasses.asdict(release)
    del fields["hash"]
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def problems(release: Release, *, previous_hash: str, step: int) -> Iterator[str]:
    """Why a release cannot be the one after a hash; nothing where it can."""
    if release.step != step:
        yield f"expected step {step} here; a release is missing"
        return
    if release.previous_hash != previous_hash:
        yield f"does not follow the release before it (previous_hash {release.previous_hash[:12]}, expected {previous_hash[:12]})"
    if release.hash != digest(release):
        yield "was changed after it was written (its hash does not fit its fields)"
