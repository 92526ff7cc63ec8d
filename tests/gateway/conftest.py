"""A gateway in front of a scripted upstream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import Service, service
from tests.support.upstream import FakeUpstream, upstream


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream() as server:
        yield server


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    with service(tmp_path, upstream=fake.url) as running:
        yield running
