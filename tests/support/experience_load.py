"""Everything that stores experience, at work at once: agents, reports, sessions, imports and retention.

As a program, `python -m tests.support.experience_load URL`, it stands for a gateway and its keeper that may die at any moment; each thing
that was acknowledged is a line on its standard output. What is sent follows from names and numbers, so whoever reads those lines knows
what must be found afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from reef import process
from reef.errors import ReefError
from reef.experience import database, jsontext, lines, schema
from reef.experience.committer import Committer, Keeper, Storing
from reef.experience.lines import Line, RecordLine
from reef.experience.reports import ReportDraft
from reef.experience.retention import Budget, Policy, Retention
from reef.experience.transfer import Importer
from reef.experience.writer import Writer
from reef.types import JSON, End, Origin, Record

AGENTS = 4
TURNS = 16
"""Of each agent."""
BATCHES = 3
OLD_SESSIONS = 3
OLD_TURNS = 30
"""More than retention drops in one transaction."""
BEFORE_RETENTION = 12
"""Records that are acknowledged before retention begins, so that it works amid traffic."""

Tell = Callable[[dict[str, JSON]], None]


def exchange(agent: int, number: int, *, scenario: str = "default") -> Record:
    """What an agent sends and gets as its ``number``-th turn: its whole history, as agents do. The last agent names no session."""
    name = f"{scenario}-{agent}"
    messages: list[JSON] = [{"role": "system", "content": f"You are {name}."}]
    for turn in range(number):
        messages += [{"role": "user", "content": _text(name, turn)}, {"role": "assistant", "content": f"done {turn}"}]
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": f"done {number}"}, "finish_reason": "stop"}]}
    return Record(
        id=f"rec-{name}-{number}",
        scenario=scenario,
        session=None if agent == AGENTS - 1 else f"run-{name}",
        release=1,
        origin=Origin.USER,
        dialect="chat",
        upstream="u",
        model=name,
        end=End.COMPLETE,
        status=200,
        streamed=number % 2 == 1,
        request={"model": name, "messages": [*messages, {"role": "user", "content": _text(name, number)}]},
        response=answer,
        usage={},
        started_at=1e9 + number,
        first_byte_ms=1.0,
        duration_ms=2.0,
    )


def import_lines(batch: int) -> list[Line]:
    """A batch to import: a session, its records (more than are stored at once) and two reports on them."""
    session, count = f"imported-{batch}", 40
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}}]}
    found: list[JSON] = [{"kind": "session", "id": session, "adapter": "pi", "release": 1, "started_at": 5.0}]
    for number in range(count):
        request = {"model": "m", "messages": [{"role": "user", "content": f"{session}/{number}"}]}
        name = f"{session}-{number}"
        found.append({"id": name, "session": session, "request": request, "response": answer, "started_at": 6.0})
    for number in (0, count - 1):
        references = [f"{session}-{number}", f"{session}-1"]
        found.append({"kind": "report", "id": f"{session}-report-{number}", "references": references, "score": 0.5, "created_at": 7.0})
    return lines.read(jsontext.dumps(found), first=1, scenario="default", in_lines=False, most=100)


def imported_records(batch: int) -> list[Record]:
    """The records of a batch."""
    return [line.value.record(line.scenario) for line in import_lines(batch) if isinstance(line.value, RecordLine)]


def prepare(engine: sa.Engine) -> list[Record]:
    """A database with sessions that are long over and beyond their budget; their records."""
    database.create_tables(engine)
    old = [exchange(agent, number, scenario="old") for agent in range(OLD_SESSIONS) for number in range(OLD_TURNS)]
    committer = Committer(engine)
    assert committer.commit(old) == [""] * len(old)
    committer.close()
    with database.write(engine).begin() as tx:
        tx.execute(schema.blobs.update().values(touched_at=0.0))  # they came with those records, long ago
    return old


def retention(engine: sa.Engine) -> Retention:
    """Retention of what :func:`prepare` made."""
    return Retention(engine, Policy(scenarios={"old": Budget(max_age_s=86400.0)}))


class Load:
    """One process' share of the work.

    Args:
        first: the number of each agent's first turn here; those before it are in its history.
        tell: is told of whatever is sent with content that does not follow from its name, and of whatever is acknowledged.
    """

    def __init__(self, engine: sa.Engine, *, storing: Storing, first: int, tell: Tell) -> None:
        self._engine = engine
        self._writer = Writer(engine, storing=storing)
        self._first = first
        self._tell = tell
        self._acknowledged = 0
        self._amid_traffic = asyncio.Event()

    async def run(self, *, reports: Sequence[ReportDraft] = ()) -> None:
        """Do all of it once.

        Args:
            reports: sent again before anything else.
        """
        self._writer.start()
        try:
            for draft in reports:
                await self._report(draft)
            agents = [self._agent(agent) for agent in range(AGENTS)]
            await asyncio.gather(*agents, self._import(), self._retain())
        finally:
            await self._writer.aclose()

    async def _agent(self, agent: int) -> None:
        stored: list[str] = []
        for number in range(self._first, self._first + TURNS):
            record = exchange(agent, number)
            if record.session is not None and number % 4 == 0:
                await self._try(
                    self._writer.session("default", record.session, adapter="pi", release=number + 1),
                    {"session": record.session, "release": number + 1},
                )
            if await self._try(self._writer.record(record), {"record": record.id}):
                stored.append(record.id)
                self._acknowledged += 1
            if self._acknowledged >= BEFORE_RETENTION:
                self._amid_traffic.set()
            if number % 4 == 3 and stored:
                await self._report(ReportDraft(scenario="default", id=f"report-{agent}-{number}", references=tuple(stored[-3:]), score=0.5))
        self._amid_traffic.set()

    async def _report(self, draft: ReportDraft) -> None:
        self._tell({"sending": draft.id, "references": list(draft.references)})
        await self._try(self._writer.report(draft), {"report": draft.id})

    async def _import(self) -> None:
        importer = Importer(self._engine, self._writer, redact=True)
        for batch in range(BATCHES):
            await self._try(importer.take(import_lines(batch)), {"import": batch})

    async def _retain(self) -> None:
        await self._amid_traffic.wait()
        await asyncio.to_thread(self._retain_twice)

    def _retain_twice(self) -> None:
        retaining = retention(self._engine)
        for _ in range(2):  # PostgreSQL: counted is what was there at the look before
            retaining.run_all()
        retaining.sweep()

    async def _try(self, work: Any, what: dict[str, JSON]) -> bool:
        """Whether it was acknowledged."""
        try:
            await work
        except ReefError:  # the keeper died under it
            return False
        self._tell(what)
        return True


class Watched(Keeper):
    """A keeper whose processes are remembered, to see how they ended."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        super().start()
        assert self.process is not None
        self.processes.append(self.process)


def main() -> None:
    process.configure_logging()  # on standard error
    engine = database.connect(sys.argv[1])
    keeper = Watched(sys.argv[1])

    def tell(what: dict[str, JSON]) -> None:
        os.write(1, json.dumps(what).encode() + b"\n")

    async def work() -> None:
        await Load(engine, storing=keeper, first=0, tell=tell).run()

    asyncio.run(work())
    tell({"keepers": [one.wait(30) for one in keeper.processes]})


def _text(name: str, turn: int) -> str:
    return f"{name}, turn {turn}: " + "what is to be done, " * 10


if __name__ == "__main__":
    main()
