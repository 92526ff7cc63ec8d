"""Gateways hear of each change of what they hold in memory; of the records that they store themselves they hear nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from chains import Bench, verdict

from reef.experience import database
from reef.experience.tokens import Grant, TokenStore
from reef.gateway.commit_watch import CommitWatch
from reef.releases import staging
from reef.releases.controller import Controller
from reef.releases.rollout import Mode, Plan
from reef.types import Content, Decision
from tests.support.gateway import until

PLAN = Plan(mode=Mode.CANARY, share=0.5, min_reports=20, min_effect=0.1)
WEIGHTS = [staging.Wanted("default", step, f"default.{step}", Content("id", "commit")) for step in (1, 2)]


def changes(bench: Bench) -> Iterator[str]:
    """Changes one announced thing before each yield, and says what."""
    tokens = TokenStore(bench.engine)
    tokens.create("laptop", grant=Grant(frozenset({"infer"})))
    yield "a token was issued"
    tokens.revoke("laptop")
    yield "a token was revoked"
    bench.promote("better")
    yield "a head moved"
    bench.controller.ensure_scenario("other", starter={})
    yield "a scenario began"
    candidate = bench.candidate("best")
    Controller(bench.engine, bench.artifacts, plan=PLAN).settle(candidate, verdict(Decision.PROMOTE), expected_head=2)
    yield "a canary began"
    bench.controller.reject(candidate.id, reason="seen enough")
    yield "a canary ended"
    writing = database.write(bench.engine)
    for weights in WEIGHTS:
        with writing.begin() as tx:
            staging.note(tx, "http://engine", weights)
        yield f"{weights.name} were staged"
    with writing.begin() as tx:
        staging.note(tx, "http://engine", WEIGHTS[0])
    yield "weights were staged again"
    with writing.begin() as tx:
        staging.forget(tx, "http://engine", ["default.1"])
    yield "weights were lost"
    with writing.begin() as tx:
        staging.put_away(tx, "http://engine", "default")
    yield "weights were put away"


def test_each_change_is_noticed(bench: Bench) -> None:
    looks: list[float] = []
    watch = CommitWatch(bench.engine, [lambda _connection: looks.append(time.monotonic())])
    watch.start()
    try:
        until(lambda: bool(looks))
        seen = len(looks)
        for _what in changes(bench):
            until(lambda seen=seen: len(looks) > seen)
            seen = len(looks)
    finally:
        watch.stop()


def test_in_sqlite_each_change_is_another_sign_and_a_candidate_alone_is_none(bench: Bench) -> None:
    if bench.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL says itself which table changed")
    with bench.engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection

        def look() -> Any:
            return driver.execute(database.sign()).fetchall()

        signs = [look()]
        for what in changes(bench):
            signs.append(look())
            assert signs[-1] != signs[-2], what
        bench.candidate("proposed and no more")
        assert look() == signs[-1]
