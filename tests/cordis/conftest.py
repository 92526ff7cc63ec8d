"""Cordis on real parts: a database, a git repository, and the rehearsal model as a process, asked through the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from reef.artifacts.repository import ArtifactRepository
from reef.config import Config
from reef.experience import database, ids
from reef.experience.reports import ReportDraft
from reef.experience.store import ExperienceStore
from reef.experience.writer import Writer
from reef.harness.tree import starter
from reef.learner.recipe import Model, Workbench
from reef.releases.controller import Controller
from reef.types import JSON, End, Origin, Record, Report

SCENARIO = "demo"


class Rehearsal:
    """Implements :class:`reef.learner.recipe.Model`; keeps what it was asked."""

    def __init__(self, url: str) -> None:
        self.client = openai.OpenAI(base_url=url, api_key="none", timeout=20, max_retries=0)
        self.asked: list[list[Mapping[str, str]]] = []
        self.purposes: list[str] = []

    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str) -> str:
        self.asked.append(list(messages))
        self.purposes.append(purpose)
        return self.client.chat.completions.create(model="m", messages=list(messages)).choices[0].message.content or ""


class Scripted:
    """Answers from a list, for what no rehearsal would say."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[list[Mapping[str, str]]] = []

    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str) -> str:
        self.asked.append(list(messages))
        return self.answers.pop(0)


def say(role: str, content: JSON, **more: JSON) -> dict[str, JSON]:
    return {"role": role, "content": content, **more}


@dataclass
class Lab:
    """One scenario on real storage."""

    folder: Path
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = database.connect(f"sqlite:///{self.folder / 'reef.db'}")
        self.artifacts = ArtifactRepository(self.folder / "artifacts.git")
        self.controller = Controller(self.engine, self.artifacts)
        database.create_tables(self.engine)
        self.store = ExperienceStore(self.engine)
        self.head = self.controller.ensure_scenario(SCENARIO, starter=starter())

    def bench(self, model: Model | None = None) -> Workbench:
        return Workbench(SCENARIO, self.store, self.artifacts, model or Scripted(), "pi")

    def record(self, messages: Sequence[JSON], answer: JSON = None, *, session: str | None = None, **more: Any) -> Record:
        choices = [{"index": 0, "message": answer, "finish_reason": "stop"}]
        values: dict[str, Any] = {
            "id": ids.receipt(), "scenario": SCENARIO, "session": session, "release": 1, "origin": Origin.USER, "dialect": "chat",
            "upstream": "http://u/v1", "model": "m", "end": End.COMPLETE, "status": 200, "streamed": True,
            "request": {"model": "m", "messages": list(messages)}, "response": {"id": "r", "choices": choices} if answer else None,
            "usage": {}, "started_at": time.time(), "first_byte_ms": 1.0, "duration_ms": 2.0,
        }  # fmt: skip
        record = Record(**{**values, **more})
        self._write(lambda writer: writer.record(record))
        return record

    def report(self, *, score: float | None = 0.0, feedback: JSON = None, **quoted: Any) -> Report:
        draft = ReportDraft(scenario=SCENARIO, score=score, feedback=feedback, **quoted)
        return self._write(lambda writer: writer.report(draft))[0]

    def failed_run(self, prompt: str, feedback: JSON, *, session: str = "s1") -> Report:
        """A run as Pi makes it: two requests, the second with the tool's result; then the user's report."""
        call = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": '{"path":"date.txt","content":"03/07/2024"}'}}
        start = [say("system", "You are a coding assistant."), say("user", [{"type": "text", "text": prompt}])]
        calling = say("assistant", "", tool_calls=[call])
        self.record(start, calling, session=session)
        self.record(
            [*start, calling, say("tool", "Successfully wrote 10 bytes", tool_call_id="c1")], say("assistant", "Done."), session=session
        )
        return self.report(feedback=feedback, session=session)

    def _write(self, work: Callable[[Writer], Any]) -> Any:
        async def write() -> Any:
            writer = Writer(self.engine)
            writer.start()
            try:
                return await work(writer)
            finally:
                await writer.aclose()

        return asyncio.run(write())


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.engine.dispose()


@contextlib.contextmanager
def _process(script: Sequence[str]) -> Iterator[Rehearsal]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
    environment = {**inherited, "REEF_CONFIG": Config.model_validate({"rehearsal": {"proposals": list(script)}}).model_dump_json()}
    process = subprocess.Popen([sys.executable, "-m", "reef.rehearsal"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        rehearsal = Rehearsal(process.stdout.readline().strip())
        yield rehearsal
        rehearsal.client.close()
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.fixture
def rehearsal(request: pytest.FixtureRequest) -> Iterator[Rehearsal]:
    """Its script is the parameter: ``@pytest.mark.parametrize("rehearsal", [("harmful", "useful")], indirect=True)``."""
    with _process(request.param) as rehearsal:
        yield rehearsal


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted
