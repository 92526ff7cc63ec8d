"""Death at every place where experience becomes lasting: what was acknowledged is there, what was not is there wholly or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import timeit
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import reef
from reef import failpoints
from reef.experience import database, schema, usage
from reef.experience.committer import InThread
from reef.experience.reports import ReportDraft
from reef.experience.store import ExperienceStore
from reef.types import Record
from tests.support import experience_load as load

CODE = Path(reef.__file__).parent
ROOT = CODE.parent
NTH = {
    "experience.told": 6, "report.half": 3, "report.inserted": 3, "session.inserted": 5, "other.committed": 7, "import.records": 3,
    "import.report": 3, "import.sessions.inserted": 2, "import.sessions.committed": 2, "retention.slimmed": 3, "retention.dropped": 3,
    "retention.counted": 1, "retention.sweeping": 1,
}  # fmt: skip
"""The pass at which to die: amid the work. A keeper, which lives again, dies at every 12th batch."""
KEEPER = 12
LATER = 100
"""The number of each agent's first turn after the restart."""


def reached(folder: Path) -> set[str]:
    """The points that code passes."""
    return {name for file in folder.rglob("*.py") for name in re.findall(r'\breach\("([^"]+)"\)', file.read_text())}


IN_THIS_ROOM = sorted(reached(CODE / "experience"))
ALWAYS_ON_BOTH = ("experience.committed", "experience.inserted", "report.inserted", "retention.dropped")
"""The others differ on PostgreSQL in nothing but the server that keeps the transaction: they are run there under ``-m slow``."""
CASES = [pytest.param("sqlite", point) for point in IN_THIS_ROOM] + [
    pytest.param("postgresql", point, marks=() if point in ALWAYS_ON_BOTH else pytest.mark.slow) for point in IN_THIS_ROOM
]


@dataclass
class Told:
    """What the load said before it died."""

    records: set[str] = field(default_factory=set)
    reports: set[str] = field(default_factory=set)
    sent: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What each report quotes, acknowledged or not."""
    sessions: dict[str, int] = field(default_factory=dict)
    imports: set[int] = field(default_factory=set)
    keepers: list[int] = field(default_factory=list)
    """How they ended, if the load lived to see it."""
    log: str = ""

    def take(self, what: dict[str, Any]) -> None:
        match what:
            case {"sending": name, "references": references}:
                self.sent[name] = tuple(references)
            case {"record": name}:
                self.records.add(name)
            case {"report": name}:
                self.reports.add(name)
            case {"session": name, "release": release}:
                self.sessions[name] = release
            case {"import": batch}:
                self.imports.add(batch)
            case {"keepers": codes}:
                self.keepers = codes


def work_until_death(url: str, point: str) -> tuple[int, Told]:
    """Run the load with a point armed, until it and its keepers are gone; how it ended."""
    environment = {**os.environ, failpoints.VARIABLE: f"{point}:{NTH.get(point, KEEPER)}"}
    command = [sys.executable, "-m", "tests.support.experience_load", url]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=120)
    told = Told(log=ended.stderr.decode())
    for line in ended.stdout.splitlines():
        told.take(json.loads(line))
    return ended.returncode, told


def work_again(engine: sa.Engine, told: Told) -> Told:
    """The restart: sessions go on, reports and imports are sent again as they were."""
    drafts = [ReportDraft(scenario="default", id=name, references=quoted, score=0.5) for name, quoted in told.sent.items()]
    now = Told()

    async def run() -> None:
        await load.Load(engine, storing=InThread(engine), first=LATER, tell=now.take).run(reports=drafts)

    asyncio.run(run())
    return now


@pytest.mark.parametrize(("database_url", "point"), CASES, indirect=["database_url"])
def test_after_death_at_this_point_nothing_acknowledged_is_missing_and_nothing_is_half_there(database_url: str, point: str) -> None:
    engine = database.connect(database_url)
    old = load.prepare(engine)
    code, told = work_until_death(database_url, point)
    assert -signal.SIGKILL in [code, *told.keepers], f"the point was not passed: {told.log[-2000:]}"
    assert told.records or told.imports, "it died before it did anything"
    check_records(engine, old, acknowledged=told.records)
    check_reports(engine, told)
    check_sessions(engine, told)
    check_imports(engine, told)

    now = work_again(engine, told)
    assert now.records == {load.exchange(agent, LATER + turn).id for agent in range(load.AGENTS) for turn in range(load.TURNS)}
    assert now.reports >= set(told.sent)
    assert now.imports == set(range(load.BATCHES))
    told.records |= now.records
    told.reports |= now.reports
    told.sent |= now.sent
    told.imports |= now.imports
    check_records(engine, old, acknowledged=told.records)
    check_reports(engine, told)
    check_imports(engine, told)
    check_retention(engine, old)
    engine.dispose()


def test_every_listed_point_is_passed_somewhere_and_every_point_that_is_passed_is_listed() -> None:
    assert reached(CODE) == set(failpoints.POINTS)


def test_a_point_that_is_not_there_is_refused() -> None:
    command = [sys.executable, "-c", "import reef.failpoints"]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, failpoints.VARIABLE: "nowhere"}, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    assert "there is no such point" in ended.stderr


def test_a_point_that_is_not_armed_costs_next_to_nothing() -> None:
    passes = 100_000
    best_s = min(timeit.repeat(lambda: failpoints.reach("experience.told"), number=passes, repeat=10)) / passes
    assert best_s < 500e-9  # 50 ns, and ten times that on a loaded machine with the lambda


def everything(engine: sa.Engine) -> dict[str, Record]:
    """All records that have their content."""
    store = ExperienceStore(engine)
    return {record.id: record for scenario in ("default", "old") for record in store.records(scenario, limit=10_000)}


def check_records(engine: sa.Engine, old: Sequence[Record], *, acknowledged: set[str]) -> None:
    """Each acknowledged record is given back as sent, and so is whatever else is there."""
    stored, there = everything(engine), set()
    candidates = [load.exchange(agent, first + turn) for first in (0, LATER) for agent in range(load.AGENTS) for turn in range(load.TURNS)]
    for sent in [*candidates, *old]:
        if (found := stored.get(sent.id)) is None:
            continue
        assert found == sent._replace(session=sent.session or found.session)
        assert json.dumps(found.request) == json.dumps(sent.request)  # the order of keys too
        there.add(sent.id)
    assert acknowledged <= there
    with engine.connect() as tx:
        names = {row.id: row.content_digest for row in tx.execute(sa.select(schema.records))}
        for sent in old:  # it has its content, or what is kept in its place
            assert (sent.id in there) != bool(names[sent.id])
        assert len(names) == tx.execute(sa.select(sa.func.count()).select_from(schema.records)).scalar_one()
        unnamed = sa.select(schema.records.c.session).distinct().where(schema.records.c.model == f"default-{load.AGENTS - 1}")
        assert len(tx.execute(unnamed).all()) <= 1, "a session that was found by structure is another one after the death"


def check_reports(engine: sa.Engine, told: Told) -> None:
    """Each acknowledged report is there; all that are there quote what they were sent with."""
    store = ExperienceStore(engine)
    stored = {report.id: report for report in store.reports("default", limit=1000) if report.id in told.sent}
    assert told.reports - {name for name in told.reports if name.startswith("imported")} <= set(stored)
    for name, report in stored.items():
        assert sorted(report.references) == sorted(told.sent[name])
    quoted, table = schema.report_references, schema.reports
    with engine.connect() as tx:
        names = tx.execute(sa.select(table.c.id)).scalars().all()
        assert len(names) == len(set(names))
        assert set(tx.execute(sa.select(quoted.c.report).distinct()).scalars()) == set(names)


def check_sessions(engine: sa.Engine, told: Told) -> None:
    """Each session is as it was registered last, or as it was about to be."""
    with engine.connect() as tx:
        stored = {row.id: row.release for row in tx.execute(sa.select(schema.sessions))}
    for name, release in told.sessions.items():
        assert stored[name] in (release, release + 4)  # it is registered anew with every fourth turn


def check_imports(engine: sa.Engine, told: Told) -> None:
    """A batch that was acknowledged is there; of another there may be a part, each record of it whole."""
    stored = everything(engine)
    with engine.connect() as tx:
        sessions, reports = (set(tx.execute(sa.select(table.c.id)).scalars()) for table in (schema.sessions, schema.reports))
    for batch in range(load.BATCHES):
        there = 0
        for sent in load.imported_records(batch):
            if (found := stored.get(sent.id)) is not None:
                assert found == sent
                there += 1
        assert batch not in told.imports or there == len(load.imported_records(batch))
        ours = {name for name in reports if name.startswith(f"imported-{batch}-")}
        assert not there or f"imported-{batch}" in sessions
        assert not ours or there == len(load.imported_records(batch)), "a report without what it quotes"
        if batch in told.imports:
            assert len(ours) == 2


def check_retention(engine: sa.Engine, old: Sequence[Record]) -> None:
    """After a pass that lived: all that is over is gone, with what only it used, and the sums are right."""
    assert [record.id for record in old if record.id in everything(engine)] == []
    counting = usage.Usage(engine)
    counting.look()
    counting.look()
    sums = usage.sums(engine)
    records = schema.records
    with engine.connect() as tx:
        assert tx.execute(sa.select(sa.func.count()).select_from(schema.blobs).where(schema.blobs.c.loose)).scalar_one() == 0
        live = tx.execute(sa.select(sa.func.count()).where(records.c.scenario == "default", records.c.gone_at.is_(None))).scalar_one()
    assert (sums["old"]["records"], sums["old"]["bytes"]) == (0, 0)
    assert sums["old"]["dropped"] == len(old)
    assert sums["default"]["records"] == live
