"""The loop settles every batch exactly once, whatever becomes of its candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from reef.artifacts.repository import ArtifactRepository
from reef.errors import InvalidTree, ProposalError, UpstreamError
from reef.experience import schema
from reef.experience.database import connect, create_tables, write
from reef.experience.store import ExperienceStore
from reef.learner.loop import Activity, Learner
from reef.learner.recipe import Attempt, Batch, Proposal, Recipe, Selection, Workbench
from reef.releases.controller import Controller
from reef.types import Candidate, CandidateState, Component, Decision, File, Release, Report, Tree, Verdict
from tests.support.chain import publish


class AppendLine(Recipe):
    """Writes what the script says into AGENTS.md: a line, or an error to raise."""

    name = "append_line"
    component = Component.HARNESS
    attempts = 3

    def __init__(self, script: Sequence[str | Exception]) -> None:
        super().__init__(batch_size=1, options={})
        self.script = script
        self.seen: list[int] = []

    def select(self, bench: Workbench) -> Selection:
        waiting = bench.store.unconsumed_reports(bench.scenario, self.name, limit=1)
        return Selection(Batch(tuple(waiting))) if waiting else Selection()

    def propose(self, batch: Batch, *, parent: Release, earlier: Sequence[Attempt], bench: Workbench) -> Proposal:
        self.seen.append(len(earlier))
        line = self.script[len(earlier)]
        if isinstance(line, Exception):
            raise line
        tree = {**bench.artifacts.read(parent.commit), "AGENTS.md": File(line.encode())}
        branch = f"candidates/{bench.scenario}/{len(self.seen)}"
        commit = bench.artifacts.commit(tree, parents=[parent.commit], message=line, trailers={})
        bench.artifacts.set_ref(f"refs/heads/{branch}", commit)
        return Proposal(branch=branch, commit=commit, summary=line)


class WordJudge:
    """Promotes what contains `good`, refuses `forbidden` at the door, rejects the rest."""

    def __init__(self, *, during: Callable[[], None] = lambda: None) -> None:
        self.during = during

    def admit(self, tree: Tree, *, base: Tree) -> None:
        if b"forbidden" in tree["AGENTS.md"].data:
            raise InvalidTree("it says forbidden")

    def judge(self, candidate: Candidate, *, tree: Tree, head: Release, head_tree: Tree, progress: Callable[[str], None]) -> Verdict:
        progress("reading")
        self.during()
        good = b"good" in tree["AGENTS.md"].data
        decision = Decision.PROMOTE if good else Decision.REJECT
        return Verdict(
            decision,
            "by its words",
            effect=1.0 if good else -1.0,
            low=-1,
            high=1,
            pairs=1,
            wins=1,
            losses=0,
            evidence=1,
            alpha=0.05,
            seconds=0,
        )


class House:
    """A store, a repository and a chain with one failing report."""

    def __init__(self, folder: Path) -> None:
        self.engine = connect(f"sqlite:///{folder / 'reef.db'}")
        create_tables(self.engine)
        self.artifacts = ArtifactRepository(folder / "artifacts.git")
        self.controller = Controller(self.engine, self.artifacts)
        self.controller.ensure_scenario("default", starter={"AGENTS.md": File(b"start")})
        self.add_report("rep_1")
        self.told: list[Activity] = []

    def add_report(self, name: str) -> None:
        row: Mapping[str, Any] = {"id": name, "digest": b"", "scenario": "default", "score": 0.0, "metadata": {}, "created_at": 0.0}
        with write(self.engine).begin() as transaction:
            transaction.execute(sa.insert(schema.reports).values(row))

    def learner(self, recipe: Recipe, judge: WordJudge) -> Learner:
        return Learner(
            recipe=recipe,
            store=ExperienceStore(self.engine),
            artifacts=self.artifacts,
            controller=self.controller,
            judge=judge,
            model_for=lambda _scenario: NoModel(),
            adapter="pi",
            max_staleness=1,
            tell=self.told.append,
        )

    def add_record(self, name: str, *, release: int, report: str) -> None:
        empty = {
            "scenario": "default",
            "origin": "user",
            "dialect": "chat",
            "upstream": "u",
            "model": "m",
            "end": "complete",
            "status": 200,
        }
        empty |= {"streamed": False, "request_envelope": b"", "delta": b"", "depth": 0, "started_at": 0.0, "duration_ms": 0.0, "error": ""}
        with write(self.engine).begin() as transaction:
            transaction.execute(sa.insert(schema.records).values(id=name, release=release, **empty))
            transaction.execute(sa.insert(schema.report_references).values(report=report, position=0, record=name))

    def states(self) -> list[CandidateState]:
        return [candidate.state for candidate in self.controller.candidates("default")]

    def waiting(self) -> list[Report]:
        return ExperienceStore(self.engine).unconsumed_reports("default", AppendLine.name, limit=10)


class NoModel:
    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str) -> str:
        raise AssertionError("these recipes ask no model")


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_attempts_go_on_until_one_is_released(house: House) -> None:
    recipe = AppendLine(["bad", "forbidden", "good"])
    assert house.learner(recipe, WordJudge()).work_once()
    assert recipe.seen == [0, 1, 2]
    assert house.states() == [CandidateState.REJECTED, CandidateState.REJECTED, CandidateState.RELEASED]
    assert house.controller.head("default").step == 2
    assert house.controller.tree("default", 2)["AGENTS.md"].data == b"good"
    assert house.waiting() == []
    assert not house.learner(recipe, WordJudge()).work_once()


def test_a_batch_whose_attempts_are_used_up_is_consumed_without_a_release(house: House) -> None:
    house.learner(AppendLine(["bad", "worse", "forbidden"]), WordJudge()).work_once()
    assert house.controller.head("default").step == 1
    assert house.waiting() == []


def test_a_proposal_that_changes_nothing_is_not_judged_and_spends_none_of_the_error(house: House) -> None:
    judged: list[int] = []
    house.learner(AppendLine(["start", "bad", "start"]), WordJudge(during=lambda: judged.append(1))).work_once()
    assert len(judged) == 1
    first = house.controller.candidates("default")[0]
    verdict = house.controller.verdict(first.id)
    assert verdict is not None
    assert (verdict.decision, first.state) == (Decision.NO_CHANGE, CandidateState.INCONCLUSIVE)
    assert house.controller.spent("default") == 1
    assert house.waiting() == []


def test_no_proposal_settles_the_batch(house: House) -> None:
    house.learner(AppendLine([ProposalError("nothing usable")]), WordJudge()).work_once()
    assert house.waiting() == []
    assert any(activity.error == "nothing usable" for activity in house.told)


def test_an_upstream_that_is_down_keeps_the_batch_for_later(house: House) -> None:
    learner = house.learner(AppendLine([UpstreamError("refused")]), WordJudge())
    assert not learner.work_once()
    assert len(house.waiting()) == 1
    assert house.told[-1].error == "refused"
    assert not learner.work_once(), "it waits before it tries again"


def test_a_head_that_moves_while_judging_changes_nothing_and_the_step_starts_again(house: House) -> None:
    moved: list[Release] = []

    def move_once() -> None:
        if not moved:
            moved.append(publish(house.controller, {"AGENTS.md": File(b"from elsewhere")}))

    learner = house.learner(AppendLine(["good"]), WordJudge(during=move_once))
    learner.work_once()
    assert house.controller.head("default").step == 2
    assert sorted(house.states()) == [CandidateState.ABANDONED, CandidateState.RELEASED]
    assert len(house.waiting()) == 1
    learner.work_once()
    assert house.controller.head("default").step == 3
    assert house.waiting() == []


def test_a_learner_that_was_killed_goes_on_after_the_attempts_already_judged(house: House) -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    recipe = AppendLine(["bad", "good"])
    house.learner(AppendLine(["bad", UpstreamError("down")]), WordJudge()).work_once()
    with pytest.raises(Killed):
        house.learner(AppendLine(["bad", "good"]), WordJudge(during=die)).work_once()
    house.controller.repair()
    house.learner(recipe, WordJudge()).work_once()
    assert recipe.seen[0] == 1
    assert house.controller.head("default").step == 2
    assert CandidateState.ABANDONED in house.states()


def test_reports_on_releases_too_old_are_consumed_without_a_candidate(house: House) -> None:
    house.add_record("rec_1", release=1, report="rep_1")
    for word in ("second", "third"):
        publish(house.controller, {"AGENTS.md": File(word.encode())})
    recipe = AppendLine(["good"])
    assert house.learner(recipe, WordJudge()).work_once()
    assert house.waiting() == []
    assert recipe.seen == []
