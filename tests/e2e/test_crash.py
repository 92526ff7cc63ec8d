"""SIGKILL at any moment: every receipt whose answer reached its end is there afterwards, nothing twice, and no release is half made."""

from __future__ import annotations

import json
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from reef.artifacts.repository import ArtifactRepository
from reef.experience.database import connect, create_tables
from reef.experience.schema import consumptions, report_references, reports
from reef.experience.store import ExperienceStore
from reef.harness.tree import starter
from reef.releases.controller import Controller
from reef.types import End, File, Origin, Record
from tests.support import databases
from tests.support.agents import Agent
from tests.support.chain import publish
from tests.support.service import Service, serving, wait_for

AGENTS = 8
VICTIMS = ("keeper", "keeper", "gateway", "gateway", "learner", "everything")
BETWEEN = 8
"""Answers acknowledged between two kills."""
WITHIN_S = 60.0


def test_fifteen_kills_lose_nothing_acknowledged_and_leave_no_half_release(tmp_path: Path) -> None:
    crash(tmp_path, f"sqlite:///{tmp_path / 'state' / 'reef.db'}", rounds=15)


def test_five_kills_on_postgresql_lose_nothing_acknowledged(tmp_path: Path, postgresql: sa.URL) -> None:
    with databases.fresh(postgresql, f"reef-{secrets.token_hex(6)}") as url:
        crash(tmp_path, url, rounds=5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_kills_on_sqlite(tmp_path: Path) -> None:
    crash(tmp_path, f"sqlite:///{tmp_path / 'state' / 'reef.db'}", rounds=100)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thirty_kills_on_postgresql(tmp_path: Path, postgresql: sa.URL) -> None:
    with databases.fresh(postgresql, f"reef-{secrets.token_hex(6)}") as url:
        crash(tmp_path, url, rounds=30)


def crash(folder: Path, url: str, *, rounds: int) -> None:
    """Kill processes of a service at work, one after the other, and look at what there is in the end."""
    state = folder / "state"
    prepare_chain(state, url)
    arguments = ("--upstream", "rehearsal", "--set", f"storage.url={url}", "--set", "reef.recipe=cordis")
    with serving(folder, *arguments, "--set", "reef.options={attempts: 2}") as service:
        agents = [Agent(service, number) for number in range(AGENTS)]
        for agent in agents:
            agent.start()
        kill_in_turn(service, agents, rounds=rounds)
        wait_for(lambda: any(agent.rollbacks for agent in agents), "a rollback")
        for agent in agents:
            agent.stop.set()
        for agent in agents:
            agent.join(60)
            assert not agent.is_alive()
    engine = connect(url)
    check_integrity(engine)
    check_records(engine, agents)
    check_reports(engine, agents)
    check_releases(state, url, agents)
    engine.dispose()


def kill_in_turn(service: Service, agents: Sequence[Agent], *, rounds: int) -> None:
    """Kill one or all, amid work, at a moment nobody chose; then see answers acknowledged again."""
    seed = secrets.randbits(32)
    moments, killed = random.Random(seed), Counter[str]()

    def acknowledged() -> int:
        return sum(len(agent.answers) for agent in agents)

    for number in range(rounds):
        # every kind in turn, in another order each time
        if number % len(VICTIMS) == 0:
            order = moments.sample(VICTIMS, len(VICTIMS))
        victim, before = order[number % len(VICTIMS)], acknowledged()
        wait_for(lambda before=before: acknowledged() >= before + BETWEEN, f"answers after {killed} (seed {seed})", within_s=WITHIN_S)
        time.sleep(moments.uniform(0.0, 0.1))  # the moment of the kill, not a wait for something
        if victim == "everything":
            service.kill_everything()
            service.start()
        else:
            service.kill_at_once(victim)
        killed[victim] += 1
    before = acknowledged()
    wait_for(lambda: acknowledged() >= before + BETWEEN, f"answers after {killed} (seed {seed})", within_s=WITHIN_S)
    print(f"\nkilled {dict(killed)}, seed {seed}")


def open_controller(state: Path, url: str) -> Controller:
    return Controller(connect(url), ArtifactRepository(state / "artifacts.git"))


def prepare_chain(state: Path, url: str) -> None:
    """Two releases with different content, so that there is something to roll back to."""
    create_tables(connect(url))
    controller = open_controller(state, url)
    controller.ensure_scenario("default", starter=starter())
    publish(controller, {**starter(), "AGENTS.md": File(b"Be brief.\n")})


def check_integrity(engine: sa.Engine) -> None:
    if engine.dialect.name == "sqlite":
        with engine.connect() as tx:
            assert tx.exec_driver_sql("PRAGMA integrity_check").scalars().all() == ["ok"]


def check_records(engine: sa.Engine, agents: Sequence[Agent]) -> None:
    """Every acknowledged answer is there as it was; of every request there is one record, or none; each is given back as it was sent."""
    sent = {mark: body for agent in agents for mark, body in agent.sent.items()}
    acknowledged = {receipt: answer for agent in agents for receipt, answer in agent.answers.items()}
    assert len(acknowledged) == sum(len(agent.answers) for agent in agents), "two answers with one receipt"
    marks, receipts = Counter[str](), Counter[str]()
    for record in all_records(engine):
        mark = record.request["messages"][-1]["content"].rsplit(" ", 1)[-1]
        if record.origin is not Origin.USER or mark not in sent:  # of a trial or a proposer
            continue
        marks[mark] += 1
        receipts[record.id] += 1
        assert json.dumps(record.request) == json.dumps(sent[mark])
        if (answer := acknowledged.get(record.id)) is not None:
            assert (record.end, mark) == (End.COMPLETE, answer.mark)
            assert record.response["choices"][0]["message"]["content"] == answer.said
            assert answer.whole is None or record.response == answer.whole
    assert [receipt for receipt in acknowledged if receipts[receipt] != 1] == [], "lost, or there twice"
    assert [mark for mark, count in marks.items() if count > 1] == [], "one request, two records"
    untold = len(marks) - len(acknowledged)
    print(f"{len(sent)} requests, {len(acknowledged)} acknowledged, {untold} stored and not acknowledged")


def all_records(engine: sa.Engine) -> Iterator[Record]:
    store = ExperienceStore(engine)
    after: int | str = 0
    while page := store.records("default", after=after, limit=200):
        yield from page
        after = page[-1].id


def check_reports(engine: sa.Engine, agents: Sequence[Agent]) -> None:
    """Reports that were sent again and again are there once, with what they quote."""
    sent = {name: body for agent in agents for name, body in agent.reports.items()}
    with engine.connect() as tx:
        stored = Counter(tx.execute(sa.select(reports.c.id)).scalars())
        quoted = {name: [] for name in stored} | {row.report: [row.record] for row in tx.execute(sa.select(report_references))}
    assert [name for agent in agents for name in agent.reported if stored[name] != 1] == []
    assert set(stored) <= set(sent)
    for name, references in quoted.items():
        assert references == sent[name]["references"]


def check_releases(state: Path, url: str, agents: Sequence[Agent]) -> None:
    controller = open_controller(state, url)
    controller.repair()
    assert controller.verify("default") == []
    releases = controller.releases("default")
    acknowledged = {step for agent in agents for step in agent.rollbacks}
    assert acknowledged, "no rollback was acknowledged: the test did not do its work"
    assert acknowledged <= {release.step for release in releases}
    assert [release.step for release in releases] == list(range(1, len(releases) + 1))
    assert controller.head("default").step == len(releases)
    known = {candidate.id for candidate in controller.candidates("default")}
    with connect(url).connect() as connection:
        stored = {row.id for row in connection.execute(reports.select())}
        for consumption in connection.execute(consumptions.select()):
            assert consumption.candidate is None or consumption.candidate in known
            assert consumption.report in stored
