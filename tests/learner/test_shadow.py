"""A harness in the shadow: it is given what users asked, graded where somebody knows how, and never released by it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))

from episodes import LocalRunner

from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import content_id
from reef.errors import NotFound
from reef.evaluation import agreement
from reef.evaluation.ray_execution import Tools
from reef.experience.committer import InThread
from reef.experience.database import connect, create_tables
from reef.experience.store import ExperienceStore
from reef.experience.writer import Writer
from reef.learner.shadow import Shadows
from reef.releases import replays, rollout
from reef.releases.controller import Controller
from reef.releases.rollout import Mode, Plan
from reef.types import Candidate, CandidateState, Component, End, File, Origin, Record, Task
from tests.support.chain import GOOD

PLAN = Plan(mode=Mode.SHADOW, sessions=2)


class NoModel:
    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str) -> str:
        raise AssertionError("no grader asks a model here")


class House:
    """A chain with a candidate in the shadow, and an agent that does as ``behave`` says."""

    def __init__(self, folder: Path, behave: Callable[[str, str, int], str], *, tasks: tuple[Task, ...] = ()) -> None:
        engine = connect(f"sqlite:///{folder / 'reef.db'}")
        create_tables(engine)
        self.engine, self.store = engine, ExperienceStore(engine)
        self.controller = Controller(engine, ArtifactRepository(folder / "artifacts.git"), plan=PLAN)
        self.controller.ensure_scenario("default", starter={"AGENTS.md": File(b"old")})
        self.runner = LocalRunner(behave)
        self.shadows = Shadows(
            controller=self.controller,
            store=self.store,
            tasks=tasks,
            tools=lambda: Tools(self.runner, lambda _scenario: NoModel()),
            ask=lambda *_: pytest.fail("a harness is not asked by requests"),
            tell=lambda _activity: None,
        )

    def candidate(self) -> Candidate:
        tree = {"AGENTS.md": File(b"new")}
        commit = self.controller.artifacts.commit(tree, message="new")
        candidate = self.controller.open_candidate(
            scenario="default", component=Component.HARNESS, recipe="test", base_step=1, branch="candidates/default/new", commit=commit,
            content_id=content_id(tree), summary="New", reports=(),
        )  # fmt: skip
        self.controller.settle(candidate, GOOD, expected_head=1)
        return candidate

    def sessions(self, *told: tuple[str, str, str], origin: Origin = Origin.USER) -> None:
        """Of one exchange each: name, question, answer."""

        async def write() -> None:
            writer = Writer(self.engine, storing=InThread(self.engine))
            writer.start()
            for name, question, answer in told:
                await writer.record(
                    Record(
                        id=f"rec-{name}", scenario="default", session=name, release=1, origin=origin, dialect="chat", upstream="u",
                        model="m", end=End.COMPLETE, status=200, streamed=False, usage={}, started_at=time.time(),
                        request={"messages": [{"role": "user", "content": question}]},
                        response={"choices": [{"message": {"role": "assistant", "content": answer}}]},
                        first_byte_ms=None, duration_ms=1.0,
                    )
                )  # fmt: skip
            await writer.aclose()

        asyncio.run(write())

    def finding(self, candidate: Candidate) -> dict[str, object]:
        found = rollout.of(self.controller, candidate.id)
        assert found is not None
        assert found.finding is not None
        return dict(found.finding)


def test_a_harness_answers_what_users_asked_and_waits_for_a_person(tmp_path: Path) -> None:
    house = House(tmp_path, lambda rules, prompt, _: "the  same\nanswer" if "one" in prompt else f"{rules} answer")
    house.sessions(("s-0", "zero", "too old"), ("s-1", "one", "the same answer"), ("s-2", "two", "old answer"))
    house.sessions(("trial:1", "one", "x"), origin=Origin.TRIAL)
    candidate = house.candidate()
    assert house.shadows.work_once()
    assert {(prompt, rules, release) for rules, _, release, prompt in house.runner.calls} == {("one", "new", None), ("two", "new", None)}
    assert all(session.startswith(f"shadow:{candidate.id}:") for _, session, _, _ in house.runner.calls)
    now = house.controller.candidate(candidate.id)
    assert now.state is CandidateState.HELD
    assert "the same answer in 1 of 2" in now.reason
    assert house.controller.head("default").step == 1
    assert not house.shadows.work_once()
    assert house.controller.promote(candidate.id).step == 2


def test_the_task_that_was_captured_from_a_session_grades_it(tmp_path: Path) -> None:
    task = Task("captured", "say yes", "exact", {"expected": "yes"}, outcome={"session": "s-1", "scenario": "default"})
    house = House(tmp_path, lambda *_: "yes", tasks=(task,))
    house.sessions(("s-1", "as it was asked", "no"))
    candidate = house.candidate()
    house.shadows.work_once()
    assert house.runner.calls[0][3] == "say yes"
    finding = house.finding(candidate)
    assert finding["summary"] == "graded 1.00 on average of 1"


def test_faults_are_told_apart(tmp_path: Path) -> None:
    house = House(tmp_path, lambda _rules, prompt, _n: f"!{prompt}")
    house.sessions(("s-1", "harness", "x"), ("s-2", "infrastructure", "x"))
    candidate = house.candidate()
    house.shadows.work_once()
    assert house.finding(candidate)["summary"] == "1 faults of the harness, 1 without an answer"


def test_what_a_bug_breaks_off_does_not_come_back_at_every_start(tmp_path: Path) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError("oh")

    house = House(tmp_path, broken)
    house.sessions(("s-1", "one", "x"))
    candidate = house.candidate()
    with pytest.raises(ZeroDivisionError):
        house.shadows.work_once()
    assert "ZeroDivisionError: oh" in house.controller.candidate(candidate.id).reason
    assert not house.shadows.work_once()


def test_a_person_who_does_not_wait_is_not_overruled(tmp_path: Path) -> None:
    house = House(tmp_path, lambda *_: house.controller.reject(candidate.id).id)
    house.sessions(("s-1", "one", "x"))
    candidate = house.candidate()
    house.shadows.work_once()
    assert house.controller.candidate(candidate.id).state is CandidateState.REJECTED


def test_one_session_on_demand_with_a_candidate_or_the_head(tmp_path: Path) -> None:
    house = House(tmp_path, lambda rules, *_: f"{rules} answer")
    house.sessions(("s-1", "one", "old answer"))
    candidate = house.candidate()
    house.shadows.work_once()
    for wanted, agrees in ((None, True), (candidate.id, False)):
        replay = replays.ask(house.controller, "default", "s-1", candidate=wanted)
        assert replays.get(house.controller, "default", replay.id).finding is None
        assert house.shadows.work_once()
        finding = replays.get(house.controller, "default", replay.id).finding
        assert finding is not None
        assert [answer["agrees"] for answer in finding["answers"]] == [agrees]
    with pytest.raises(NotFound):
        replays.ask(house.controller, "default", "s-9", candidate=None)
    with pytest.raises(NotFound):
        replays.get(house.controller, "default", "replay-9")


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ({"content": "a  b"}, {"content": "a b"}, ""),
        ({"content": "a"}, {"content": "b"}, "other text"),
        ({"content": "a", "reasoning": "x"}, {"content": "a", "reasoning": "y"}, ""),
        ({"tool_calls": [("ls", '{"a": 1, "b": 2}')]}, {"tool_calls": [("ls", '{"b":2,"a":1}')]}, ""),
        ({"tool_calls": [("ls", '{"a": 1}')]}, {"tool_calls": [("ls", '{"a": 2}')]}, "other arguments"),
        ({"tool_calls": [("ls", "{}")]}, {"content": "done"}, "other tool calls"),
    ],
)
def test_answers_agree_by_what_they_say_and_do(one: dict[str, object], other: dict[str, object], differs: str) -> None:
    def turn(told: dict[str, object]) -> dict[str, object]:
        calls = [{"function": {"name": name, "arguments": text}} for name, text in told.get("tool_calls", ())]  # type: ignore[attr-defined]
        return {"role": "assistant", **told, "tool_calls": calls}

    assert agreement.difference(agreement.said([turn(one)]), agreement.said([turn(other)])) == differs
