"""A scenario on real storage whose traffic was answered by the tiny model, token by token: what recipes for weights learn from."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reef.artifacts import checkpoints
from reef.artifacts.repository import ArtifactRepository
from reef.config import TrainingConfig
from reef.experience import database, ids
from reef.experience.reports import ReportDraft
from reef.experience.store import ExperienceStore
from reef.experience.writer import Writer
from reef.harness.tree import starter
from reef.learner.ground import TrainingGround
from reef.learner.loop import Learner
from reef.learner.recipe import Model, Recipe
from reef.releases.controller import Controller
from reef.training.prompts import ChatPrompts
from reef.types import JSON, Candidate, Component, Decision, End, Origin, Record, Release, TokenTrace, Tree, Verdict

SCENARIO = "default"
SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "threads": 1, "nice": 0, "rank": 4, "alpha": 8.0, "timeout_s": 120.0}


class Scripted:
    """Implements :class:`reef.learner.recipe.Model`: says the same to everything, or what a function makes of it."""

    def __init__(self, answer: str | Callable[[str], str] = "") -> None:
        self._answer = answer
        self.asked: list[tuple[str, str]] = []
        """What was asked, and of which model."""

    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str, model: str = "") -> str:
        text = "\n".join(message["content"] for message in messages)
        self.asked.append((text, model))
        return self._answer if isinstance(self._answer, str) else self._answer(text)


class Judge:
    """Decides the same of every candidate."""

    def __init__(self, decision: Decision = Decision.PROMOTE) -> None:
        self.decision = decision

    def admit(self, tree: Tree, *, base: Tree) -> None:
        """Lets all in."""

    def judge(self, candidate: Candidate, *, tree: Tree, head: Release, head_tree: Tree, progress: Callable[[str], None]) -> Verdict:
        return Verdict(
            self.decision, "for the test", effect=1.0, low=0.0, high=1.0, pairs=9, wins=9, losses=0, evidence=99.0, alpha=0.05, seconds=0.0
        )  # fmt: skip


@dataclass
class Lab:
    """Storage, and who answered."""

    folder: Path
    model: Path
    """The tiny model's folder."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    judge: Judge | Mapping[Component, Judge] = field(default_factory=Judge)
    asks: Model = field(default_factory=Scripted)
    max_staleness: int = 3
    withheld: frozenset[str] = frozenset()
    template: Path | None = None
    """What shows conversations instead of the model's own chat template."""

    def __post_init__(self) -> None:
        self.engine = database.connect(f"sqlite:///{self.folder / 'reef.db'}")
        database.create_tables(self.engine)
        self.artifacts = ArtifactRepository(self.folder / "artifacts.git")
        self.controller = Controller(self.engine, self.artifacts, hold=())
        self.controller.ensure_scenario(SCENARIO, starter=starter())
        self.store = ExperienceStore(self.engine)
        self._opened: Any = None

    @functools.cached_property
    def prompts(self) -> ChatPrompts:
        return ChatPrompts(self.model, template=self.template)

    @property
    def ground(self) -> TrainingGround:
        return TrainingGround(
            settings=TrainingConfig.model_validate({**SETTINGS, **self.settings}),
            model=str(self.model),
            base_dir=self.folder,
            jobs=self.folder / "training",
            max_staleness=self.max_staleness,
            chat_template=self.template,
        )

    def learner(self, recipe: Recipe) -> Learner:
        return Learner(
            recipe=recipe, store=self.store, artifacts=self.artifacts, controller=self.controller, judge=self.judge,
            model_for=lambda _scenario: self.asks, adapter="pi", max_staleness=self.max_staleness,
            withheld=lambda _scenario: self.withheld, ground=self.ground,
        )  # fmt: skip

    def answer(self, messages: Sequence[JSON], answer: str, *, session: str, served: str = "", **more: Any) -> Record:
        """An exchange with the tokens that the engine would have told.

        Args:
            served: what the engine says that it served: ``default.2`` for a release.
        """
        request = {"model": "tiny", "messages": list(messages)}
        told = {"role": "assistant", "content": answer}
        response = {"id": "r", "model": served or "tiny", "choices": [{"index": 0, "message": told, "finish_reason": "stop"}]}
        values: dict[str, Any] = {
            "id": ids.receipt(), "scenario": SCENARIO, "session": session, "release": None, "origin": Origin.USER, "dialect": "chat",
            "upstream": "http://u/v1", "model": "tiny", "end": End.COMPLETE, "status": 200, "streamed": False, "request": request,
            "response": response, "usage": {}, "started_at": time.time(), "first_byte_ms": 1.0, "duration_ms": 2.0,
        }  # fmt: skip
        if "tokens" not in more:
            values["tokens"] = self._trace(request, answer)
        record = Record(**{**values, **more})
        self._write(lambda writer: writer.record(record))
        return record

    def report(self, session: str, score: float | None = None, **more: Any) -> str:
        """Report on a session; the id."""
        draft = ReportDraft(scenario=SCENARIO, session=session, score=score, **more)
        return self._write(lambda writer: writer.report(draft))[0].id

    def run(self, session: str, prompt: str, answer: str, score: float | None, **more: Any) -> Record:
        """A session of one exchange, with a report."""
        record = self.answer([{"role": "user", "content": prompt}], answer, session=session)
        self.report(session, score, **more)
        return record

    def candidates(self) -> list[Candidate]:
        return self.controller.candidates(SCENARIO)

    def unpacked(self, commit: str) -> Path:
        """The folder of a candidate's checkpoint."""
        return checkpoints.materialise(self.artifacts, commit, cache=self.folder / "unpacked")

    def _trace(self, request: Mapping[str, JSON], answer: str) -> TokenTrace:
        prompt = self.prompts.tokens(request)
        completion = tuple(self.prompts._tokenizer.encode(answer + "<|im_end|>", add_special_tokens=False).ids)
        return TokenTrace(prompt, completion, self._logprobs(prompt, completion))

    def _logprobs(self, prompt: tuple[int, ...], completion: tuple[int, ...]) -> tuple[float, ...]:
        """What the base model says of its answer."""
        import torch

        from reef.training.policy import open_model
        from tests.support.training import forward

        self._opened = self._opened or open_model(self.model, dtype=torch.float32, device=torch.device("cpu"))
        return tuple(forward(self._opened, prompt + completion)[-len(completion) :].tolist())

    def _write(self, work: Callable[[Writer], Any]) -> Any:
        async def write() -> Any:
            writer = Writer(self.engine)
            writer.start()
            try:
                return await work(writer)
            finally:
                await writer.aclose()

        return asyncio.run(write())
