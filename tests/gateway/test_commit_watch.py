"""Another process's commit is noticed within 100 ms."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
import structlog

from reef.artifacts.repository import ArtifactRepository
from reef.experience import database, tokens  # noqa: F401 - registers its table
from reef.gateway.commit_watch import CommitWatch
from reef.releases.controller import Controller
from reef.types import File
from tests.support.chain import publish
from tests.support.gateway import until


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = database.connect(database_url)
    database.create_tables(engine)
    yield engine
    engine.dispose()


def test_a_database_that_cannot_be_read_is_looked_at_again(tmp_path: Path) -> None:
    engine = database.connect(f"sqlite:///{tmp_path / 'later.db'}")
    looks: list[None] = []
    watch = CommitWatch(engine, [lambda _connection: looks.append(None)])
    with structlog.testing.capture_logs() as said:
        watch.start()
        try:
            until(lambda: said)  # it has no tables yet
            assert "no such table" in said[0]["reason"]
            database.create_tables(engine)
            until(lambda: looks)
        finally:
            watch.stop()
            engine.dispose()


@pytest.mark.alone
def test_a_new_head_is_seen_within_100_ms(engine: sa.Engine, tmp_path: Path, database_url: str) -> None:
    here = Controller(engine, ArtifactRepository(tmp_path / "artifacts.git"))
    elsewhere = Controller(database.connect(database_url), here.artifacts)
    elsewhere.ensure_scenario("default", starter={"AGENTS.md": File(b"0")})
    seen: dict[int, float] = {}
    watch = CommitWatch(engine, [lambda _connection: seen.setdefault(here.head("default").step, time.monotonic()) and None])
    watch.start()
    try:
        until(lambda: 1 in seen)
        delays = []
        for step in range(2, 7):
            publish(elsewhere, {"AGENTS.md": File(str(step).encode())})
            committed = time.monotonic()
            until(lambda step=step: step in seen)
            delays.append(seen[step] - committed)
    finally:
        watch.stop()
    assert sorted(delays)[len(delays) // 2] < 0.1
