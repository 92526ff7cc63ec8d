"""A recipe that is made of others: each has its turn, its judge, its consumption and its own attempts, on one chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from reef.errors import UpstreamError
from reef.experience.store import ExperienceStore
from reef.learner.loop import Learner
from reef.learner.recipe import Attempt, Batch, Proposal, Recipe, Selection, Workbench
from reef.types import Candidate, CandidateState, Component, Decision, File, Release, Tree, Verdict
from tests.learner.test_loop import House, NoModel, WordJudge


class Writes(Recipe):
    """Writes what the script says for its component: a word, or an error to raise."""

    def __init__(self, name: str, component: Component, script: Sequence[str | Exception], *, turns: list[str]) -> None:
        super().__init__(batch_size=1, options={})
        self.name = name
        self.component = component
        self.attempts = len(script)
        self.script = script
        self.turns = turns

    def select(self, bench: Workbench) -> Selection:
        waiting = bench.store.unconsumed_reports(bench.scenario, self.name, limit=1)
        return Selection(Batch(tuple(waiting))) if waiting else Selection()

    def propose(self, batch: Batch, *, parent: Release, earlier: Sequence[Attempt], bench: Workbench) -> Proposal:
        self.turns.append(f"{self.name} on {parent.step}")
        word = self.script[len(earlier)]
        if isinstance(word, Exception):
            raise word
        text = f"{word} {batch.reports[0].id}".encode()
        commit = bench.artifacts.commit({"AGENTS.md": File(text)}, parents=[parent.commit], message=word, trailers={})
        return Proposal(branch=f"candidates/default/{self.name}-{len(self.turns)}", commit=commit, summary=word)


class Both(Recipe):
    name = "both"

    def __init__(self, *parts: Recipe) -> None:
        super().__init__(batch_size=1, options={})
        self.made = parts

    @property
    def parts(self) -> Sequence[Recipe]:
        return self.made

    def select(self, bench: Workbench) -> Selection:
        raise AssertionError("its parts do")

    def propose(self, batch: Batch, *, parent: Release, earlier: Sequence[Attempt], bench: Workbench) -> Proposal:
        raise AssertionError("its parts do")


class Noting(WordJudge):
    """Also keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.judged: list[Component] = []

    def judge(self, candidate: Candidate, *, tree: Tree, head: Release, head_tree: Tree, progress: Callable[[str], None]) -> Verdict:
        self.judged.append(candidate.component)
        return super().judge(candidate, tree=tree, head=head, head_tree=head_tree, progress=progress)


class Parts(House):
    """A house with a harness part and one for weights, each with a judge."""

    def __init__(
        self, folder: Path, *, harness: Sequence[str | Exception] = ("good",), weights: Sequence[str | Exception] = ("good",)
    ) -> None:
        super().__init__(folder)
        self.turns: list[str] = []
        self.recipe = Both(
            Writes("rules", Component.HARNESS, harness, turns=self.turns), Writes("lora", Component.MODEL, weights, turns=self.turns)
        )
        self.judges: Mapping[Component, Noting] = {Component.HARNESS: Noting(), Component.MODEL: Noting()}
        self.learning = Learner(
            recipe=self.recipe,
            store=ExperienceStore(self.engine),
            artifacts=self.artifacts,
            controller=self.controller,
            judge=self.judges,
            model_for=lambda _scenario: NoModel(),
            adapter="pi",
            max_staleness=9,
            tell=self.told.append,
        )

    def unused(self) -> dict[str, list[str]]:
        """Reports that a part has not consumed."""
        store = ExperienceStore(self.engine)
        return {part.name: [report.id for report in store.unconsumed_reports("default", part.name)] for part in self.recipe.parts}


@pytest.fixture
def house(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_the_parts_take_turns_and_each_starts_from_what_the_other_released(house: Parts) -> None:
    house.add_report("rep_2")
    assert house.learning.work_once()
    assert house.learning.work_once()
    assert not house.learning.work_once()
    assert house.turns == ["rules on 1", "lora on 2", "rules on 3", "lora on 4"]
    head = house.controller.head("default")
    assert head.step == 5
    read = {name: house.artifacts.read(content.commit)["AGENTS.md"].data for name, content in head.components.items()}
    assert read == {"harness": b"good rep_2", "model": b"good rep_2"}
    assert [release.component for release in house.controller.releases("default")][1:] == [Component.HARNESS, Component.MODEL] * 2
    assert house.controller.verify("default") == []


def test_each_candidate_is_judged_by_the_judge_of_its_component(house: Parts) -> None:
    house.learning.work_once()
    assert {component: judge.judged for component, judge in house.judges.items()} == {
        Component.HARNESS: [Component.HARNESS],
        Component.MODEL: [Component.MODEL],
    }


def test_a_report_serves_each_part_once(house: Parts) -> None:
    assert house.unused() == {"rules": ["rep_1"], "lora": ["rep_1"]}
    house.learning.work_once()
    assert house.unused() == {"rules": [], "lora": []}
    assert [candidate.reports for candidate in house.controller.candidates("default")] == [("rep_1",)] * 2


def test_what_one_part_tried_on_a_report_is_no_attempt_of_the_other(tmp_path: Path) -> None:
    house = Parts(tmp_path, harness=["bad", "worse"], weights=["good"])
    house.learning.work_once()
    assert [
        (candidate.recipe, candidate.state) for candidate in sorted(house.controller.candidates("default"), key=lambda one: one.created_at)
    ] == [
        ("rules", CandidateState.REJECTED),
        ("rules", CandidateState.REJECTED),
        ("lora", CandidateState.RELEASED),
    ]
    assert house.unused() == {"rules": [], "lora": []}


def test_a_part_that_has_to_wait_does_not_hold_up_the_other(tmp_path: Path) -> None:
    house = Parts(tmp_path, harness=[UpstreamError("the proposer is down")], weights=["good"])
    assert house.learning.work_once()
    assert house.unused() == {"rules": ["rep_1"], "lora": []}
    assert house.controller.head("default").component is Component.MODEL
    assert any(activity.error == "the proposer is down" for activity in house.told)
    assert not house.learning.work_once(), "it waits before it tries again"
    assert house.turns == ["rules on 1", "lora on 1"]


def test_a_rollback_brings_back_what_served_together(house: Parts) -> None:
    house.add_report("rep_2")
    house.learning.work_once()
    before = house.controller.head("default").components
    house.learning.work_once()
    back = house.controller.rollback("default", 3)
    assert {name: content.content_id for name, content in back.components.items()} == {
        name: content.content_id for name, content in before.items()
    }
    assert house.controller.verify("default") == []


def test_the_errors_budget_of_the_chain_is_one_for_both(house: Parts) -> None:
    house.learning.work_once()
    assert house.controller.spent("default") == 2
    verdicts = [house.controller.verdict(candidate.id) for candidate in house.controller.candidates("default")]
    assert all(verdict is not None and verdict.decision is Decision.PROMOTE for verdict in verdicts)
