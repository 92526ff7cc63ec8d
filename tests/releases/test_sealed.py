"""Looks at the sealed tasks are asked for once, answered once, counted, and cannot be changed. On both databases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from chains import Bench, verdict

from reef.errors import ConfigError, Conflict, NotFound
from reef.evaluation.verdicts import first_difference, recompute, verdict_from
from reef.learner.loop import Activity
from reef.learner.sealed import SealedLooks
from reef.releases import sealed
from reef.types import Decision, Release, Verdict
from tests.support.verdicts import simulated


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench.create(tmp_path)
    bench.promote("two")
    return bench


def test_a_look_waits_until_it_is_answered_and_moves_no_head(bench: Bench, tmp_path: Path) -> None:
    before, spent = bench.controller.head("default"), bench.controller.spent("default")
    asked = sealed.ask(bench.controller, "default", pairs=9)
    assert (asked.step, asked.against, asked.pairs) == (2, 1, 9)
    with pytest.raises(Conflict, match="waits for its answer"):
        sealed.ask(bench.controller, "default")
    again = Bench.open(tmp_path)  # a learner that was killed midway finds it again
    assert sealed.waiting(again.controller) == asked
    sealed.answer(again.controller, asked, verdict=verdict(Decision.INCONCLUSIVE))
    assert sealed.waiting(bench.controller) is None
    [(look, answered)] = sealed.looks(bench.controller, "default")
    assert look == asked and answered is not None and answered.verdict is not None
    assert (answered.looks, answered.error, answered.verdict["decision"]) == (1, "", "inconclusive")
    assert bench.controller.head("default") == before
    assert bench.controller.spent("default") == spent
    assert bench.controller.verify("default") == []


def test_every_look_with_a_figure_is_counted(bench: Bench) -> None:
    for number, error in enumerate(("", "the upstream is down", "")):
        look = sealed.ask(bench.controller, "default")
        sealed.answer(bench.controller, look, verdict=None if error else simulated(number), error=error)
    counts = [answered.looks for _, answered in sealed.looks(bench.controller, "default") if answered]
    assert counts == [1, 1, 2]
    stored = sealed.look(bench.controller, "default", look.id)[1]
    assert stored is not None and stored.verdict is not None
    kept = verdict_from(stored.verdict)
    assert first_difference(kept, recompute(kept)) == ""


def test_what_cannot_be_measured_is_not_asked_for(bench: Bench) -> None:
    with pytest.raises(Conflict, match="the same harness"):
        sealed.ask(bench.controller, "default", step=1)
    for step, against in ((9, 1), (2, 9)):
        with pytest.raises(NotFound):
            sealed.ask(bench.controller, "default", step=step, against=against)
    with pytest.raises(NotFound):
        sealed.ask(bench.controller, "nowhere")
    with pytest.raises(NotFound):
        sealed.look(bench.controller, "default", "sealed-none")


def test_the_database_lets_nobody_change_a_look(bench: Bench) -> None:
    sealed.answer(bench.controller, sealed.ask(bench.controller, "default"), error="none")
    for statement in ("UPDATE sealed_answers SET error = ''", "DELETE FROM sealed_answers", "DELETE FROM sealed_looks"):
        with pytest.raises(sa.exc.IntegrityError, match="append-only"), bench.engine.begin() as tx:
            tx.exec_driver_sql(statement)


def test_the_learner_answers_one_after_the_other_and_says_why_it_cannot(bench: Bench) -> None:
    told: list[Activity] = []

    def measure(look: sealed.Look, *, release: Release, against: Release, progress: Callable[[str], None]) -> Verdict:
        if look.pairs == 1:
            raise ConfigError("no task is sealed", hint="Set evaluation.splits.sealed.")
        progress("pair 1")
        assert (release.step, against.step) == (2, 1)
        return simulated(1)

    looks = SealedLooks(bench.controller, measure=measure, tell=told.append)
    assert not looks.work_once()
    for pairs in (1, 2):
        sealed.ask(bench.controller, "default", pairs=pairs)
        assert looks.work_once()
    errors = [answered.error for _, answered in sealed.looks(bench.controller, "default") if answered]
    assert errors == ["no task is sealed Set evaluation.splits.sealed.", ""]
    assert told[-1].phase == "idle" and any(activity.detail.endswith("pair 1") for activity in told)


def test_a_bug_is_not_met_again_with_every_start(bench: Bench) -> None:
    def measure(look: sealed.Look, *, release: Release, against: Release, progress: Callable[[str], None]) -> Verdict:
        raise ZeroDivisionError("a bug")

    sealed.ask(bench.controller, "default")
    with pytest.raises(ZeroDivisionError):
        SealedLooks(bench.controller, measure=measure, tell=lambda _: None).work_once()
    assert sealed.waiting(bench.controller) is None
