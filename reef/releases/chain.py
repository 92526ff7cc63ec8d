"""The hash chain: each release carries a digest over itself and the digest of the release before. Pure functions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
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


def breaks(releases: Sequence[Release]) -> list[str]:
    """Where a chain, oldest first, does not hold together; empty where it does."""
    found = []
    previous = GENESIS
    for expected_step, release in enumerate(releases, start=1):
        name = f"{release.scenario} step {release.step}"
        if release.step != expected_step:
            found.append(f"{name}: expected step {expected_step} here; a release is missing")
            break
        if release.previous_hash != previous:
            found.append(
                f"{name}: does not follow the release before it (previous_hash {release.previous_hash[:12]}, expected {previous[:12]})"
            )
        if release.hash != digest(release):
            found.append(f"{name}: was changed after it was written (its hash does not fit its fields)")
        previous = release.hash
    return found
