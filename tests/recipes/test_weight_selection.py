"""What a recipe for weights selects and consumes, whatever trains: each record once, none too old, none that a test was made of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recipes.grpo.recipe import GRPORecipe
from recipes.opd.recipe import OPDRecipe
from recipes.openclaw_rl.recipe import OpenClawRLRecipe
from recipes.sao.recipe import SAORecipe
from reef import config as configuration
from reef import plugins
from reef.errors import ConfigError, TrainingError
from reef.learner import unreported
from reef.learner.weights import WeightBatch, WeightRecipe
from reef.training import batches, batches_reader
from reef.training.batches_groups import assemble_groups
from reef.types import CandidateState, Decision, End, TokenTrace
from tests.support.weights import SCENARIO, Judge, Lab

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "recipes").glob("*/examples/*/serve.yaml"))
WEIGHTS = ("sao", "grpo", "openclaw_rl", "sdpo", "sdft", "opd")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    made = Lab(tmp_path, tmp_path / "base", settings={"trainer": "tests.support.trainers:Writes"})
    yield made
    made.engine.dispose()


def trace(*prompt: int) -> TokenTrace:
    return TokenTrace(prompt or (1, 2), (7, 8), (-0.5, -1.0))


def run(lab: Lab, session: str, score: float | None = 1.0, *, prompt: str = "a", tokens: TokenTrace | None = None, **more: Any) -> str:
    """A session of one exchange and a report on it; the report's id."""
    lab.answer([{"role": "user", "content": prompt}], "an answer", session=session, tokens=tokens or trace(), **more)
    return lab.report(session, score)


def sessions(lab: Lab, reports: tuple[str, ...]) -> list[str | None]:
    return [lab.store.report(report).session for report in reports]


def selected(lab: Lab, recipe: WeightRecipe) -> tuple[WeightBatch | None, tuple[str, ...]]:
    found = recipe.select(lab.learner(recipe)._bench(SCENARIO))
    assert found.batch is None or isinstance(found.batch, WeightBatch)
    return found.batch, found.passed_over


def test_a_batch_is_consumed_with_the_release_it_led_to(lab: Lab) -> None:
    recipe = SAORecipe(batch_size=2, options={})
    learner = lab.learner(recipe)
    run(lab, "s1")
    assert not learner.step(SCENARIO), "a batch is two"
    run(lab, "s2")
    run(lab, "s3")
    assert learner.step(SCENARIO)
    (candidate,) = lab.candidates()
    assert (candidate.state, sessions(lab, candidate.reports)) == (CandidateState.RELEASED, ["s1", "s2"])
    assert "2 attempts" in candidate.summary
    assert [each.session for each in lab.store.unconsumed_reports(SCENARIO, "sao")] == ["s3"]
    assert not learner.step(SCENARIO)


def test_a_rejected_candidate_consumes_its_batch_and_the_next_starts_from_the_same_parent(lab: Lab) -> None:
    lab.judge = Judge(Decision.REJECT)
    learner = lab.learner(SAORecipe(batch_size=1, options={}))
    for session in ("s1", "s2"):
        run(lab, session)
        assert learner.step(SCENARIO)
    states = [(each.state, each.base_step) for each in lab.candidates()]
    assert states == [(CandidateState.REJECTED, 1)] * 2
    assert lab.store.unconsumed_reports(SCENARIO, "sao") == []
    assert lab.controller.head(SCENARIO).step == 1


def test_the_weights_of_a_release_are_what_the_next_candidate_starts_from(lab: Lab) -> None:
    learner = lab.learner(SAORecipe(batch_size=1, options={}))
    for number in (1, 2):
        run(lab, f"s{number}", served=f"default.{number}")
        assert learner.step(SCENARIO)
    made = {each.base_step: (lab.unpacked(each.commit) / "adapter_model.safetensors").read_bytes() for each in lab.candidates()}
    assert made == {1: b"base+1", 2: b"base+1+1"}


def test_what_cannot_train_is_passed_over_and_told(lab: Lab) -> None:
    lab.max_staleness = 0
    lab.withheld = frozenset({"tested"})
    learner = lab.learner(SAORecipe(batch_size=1, options={"max_tokens": 6}))
    old = run(lab, "old")
    assert learner.step(SCENARIO)
    assert sessions(lab, lab.candidates()[0].reports) == ["old"]
    for session, more in {
        "stale": {"served": "default.1"},
        "tested": {},
        "cut": {"end": End.TRUNCATED},
        "blind": {"tokens": None, "served": "default.2"},
        "long": {"tokens": trace(1, 2, 3, 4, 5)},
        "candidate": {"served": "default.c-1"},
        "unscored": {"score": None},
    }.items():
        given: dict[str, Any] = {"served": "default.2", **more}
        if "tokens" in given and given["tokens"] is None:
            lab.answer([{"role": "user", "content": "a"}], "x", session=session, **given)
            lab.report(session, 1.0)
        else:
            run(lab, session, **given)
    good = run(lab, "good", served="default.2")
    batch, passed_over = selected(lab, SAORecipe(batch_size=1, options={"max_tokens": 6}))
    assert batch is not None
    assert batch.consumes == (good,)
    assert set(sessions(lab, passed_over)) == {"stale", "tested", "cut", "blind", "long", "candidate", "unscored"}
    reasons = {"stale": 1, "withheld": 1, "end_truncated": 1, "no_tokens": 1, "too_long": 1, "candidate": 1}
    assert batch.found.skipped == reasons
    assert old not in passed_over


def test_a_trainer_that_is_killed_is_started_again_with_the_same_batch(lab: Lab) -> None:
    lab.settings = {"trainer": "tests.support.trainers:CrashesOnce"}
    learner = lab.learner(SAORecipe(batch_size=1, options={}))
    run(lab, "s1")
    with pytest.raises(TrainingError, match=r"SIGKILL(.|\n)*the last words"):
        learner.step(SCENARIO)
    assert lab.candidates() == []
    assert len(lab.store.unconsumed_reports(SCENARIO, "sao")) == 1
    assert learner.step(SCENARIO)
    assert [each.state for each in lab.candidates()] == [CandidateState.RELEASED]


def test_a_number_that_is_none_consumes_the_batch_and_leaves_no_candidate(lab: Lab) -> None:
    lab.settings = {"trainer": "tests.support.trainers:FindsNothing"}
    run(lab, "s1")
    assert lab.learner(SAORecipe(batch_size=1, options={})).step(SCENARIO)
    assert lab.candidates() == []
    assert lab.store.unconsumed_reports(SCENARIO, "sao") == []
    assert {path.name for path in lab.ground.jobs.glob("*/*")} <= {"parents"}


def test_a_trainer_that_is_not_set_up_consumes_nothing(lab: Lab) -> None:
    lab.settings = {"trainer": "tests.support.trainers:NotSetUp"}
    run(lab, "s1")
    with pytest.raises(TrainingError, match="torch cannot be imported"):
        lab.learner(SAORecipe(batch_size=1, options={})).step(SCENARIO)
    assert len(lab.store.unconsumed_reports(SCENARIO, "sao")) == 1


def test_without_a_model_the_configuration_is_named(lab: Lab) -> None:
    run(lab, "s1")
    recipe = SAORecipe(batch_size=1, options={})
    bench = lab.learner(recipe)._bench(SCENARIO)
    selection = recipe.select(bench)
    lab.model = Path()
    lost = lab.learner(recipe)._bench(SCENARIO)
    assert selection.batch is not None
    with pytest.raises(ConfigError, match=r"is neither|is no folder"):
        recipe.propose(selection.batch, parent=lab.controller.head(SCENARIO), earlier=(), bench=lost)


def test_groups_are_taken_whole_and_oldest_first(lab: Lab) -> None:
    for number, (group, score) in enumerate([("a", 0.0), ("b", 1.0), ("a", 1.0), ("b", 0.0), ("a", 0.5), ("c", 0.0)]):
        run(lab, f"{group}{number}", score, tokens=trace(ord(group)))
    batch, passed_over = selected(lab, GRPORecipe(batch_size=2, options={"siblings": 2}))
    assert batch is not None
    assert sessions(lab, batch.consumes) == ["a0", "a2", "a4"]
    assert passed_over == ()
    assert batch.found.skipped == {"few_siblings": 1, "not_needed": 2}


def test_reports_that_wait_for_siblings_do_not_hide_younger_ones_for_ever(lab: Lab) -> None:
    reports = [run(lab, f"s{number}", tokens=trace(number + 1)) for number in range(5)]
    waiting = batches_reader.judged(lab.store, SCENARIO, recipe="grpo", grouped=True, window=5)
    assert waiting.full
    terms = batches.Terms(parent=1, max_staleness=3)
    batch = assemble_groups(waiting.rollouts, terms=terms, size=2, siblings=2, full=waiting.full)
    assert batch.passed_over == tuple(reports[:3])
    assert batch.rollouts == 0


def test_only_answers_with_a_next_state_are_turns(lab: Lab) -> None:
    user, said = {"role": "user", "content": "one"}, {"role": "assistant", "content": "an answer"}
    first = lab.answer([user], "an answer", session="s", tokens=trace(1))
    again = lab.answer([user], "an answer", session="s", tokens=trace(1))
    later = lab.answer([user, said, {"role": "user", "content": "no"}], "an answer", session="s", tokens=trace(1, 2, 3))
    recipe = OpenClawRLRecipe(batch_size=1, options={})
    bench = lab.learner(recipe)._bench(SCENARIO)
    ended = later.started_at + 1
    found = unreported.turns(bench, recipe="openclaw_rl", idle_s=900, now=ended + 800)
    assert [each.name for each in found.rollouts] == [again.id], "the first try was asked again"
    assert found.passed_over == []
    found = unreported.turns(bench, recipe="openclaw_rl", idle_s=900, now=ended + 1000)
    assert found.passed_over == [first.id, later.id]
    lab.controller.consume(SCENARIO, "openclaw_rl", [again.id, first.id])
    assert [each.id for each in lab.store.unlearned(SCENARIO, "openclaw_rl")] == [later.id]
    assert len(lab.store.unlearned(SCENARIO, "opd")) == 3, "another recipe has its own"


def test_sessions_that_nobody_reported_on_train_once_and_what_comes_later_trains_then(lab: Lab) -> None:
    learner = lab.learner(OPDRecipe(batch_size=1, options={"teacher": str(lab.model), "idle_s": 0}))
    made = []
    for number in (1, 2, 3):
        messages = [{"role": "user", "content": "one"}] * number
        record = lab.answer(messages, "an answer", session="s", tokens=trace(*range(1, number + 2)), served=f"default.{number}")
        assert learner.step(SCENARIO)
        assert not learner.step(SCENARIO)
        made.append((record.id,))
    assert [each.reports for each in sorted(lab.candidates(), key=lambda each: each.base_step)] == made
    log = lab.artifacts.run("log", "-1", "--format=%B", lab.controller.head(SCENARIO).commit).decode()
    assert f"Reef-Receipt: {made[-1][0]}" in log
    assert "Reef-Report" not in log


@pytest.mark.parametrize("name", WEIGHTS)
def test_unknown_options_are_refused_with_those_there_are(name: str) -> None:
    kind = plugins.load("reef.recipes", name)
    with pytest.raises(ConfigError, match=r"reef\.options\.colour") as caught:
        kind(batch_size=1, options={"colour": "red", **({"teacher": "t"} if name == "opd" else {})})
    assert "max_tokens" in caught.value.hint


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.parent.name)
def test_every_example_loads_and_its_recipe_takes_its_options(file: Path) -> None:
    config = configuration.load(file)
    kind = plugins.load("reef.recipes", config.reef.recipe)
    recipe = kind(batch_size=config.reef.batch_size, options=config.reef.options)
    if file.parent.name in WEIGHTS:
        assert plugins.load("reef.recipes", file.parent.name) is kind
        assert recipe.name == file.parent.name


def test_the_learner_never_imports_torch() -> None:
    names = ", ".join(f"recipes.{name}.recipe" for name in WEIGHTS)
    code = f"import sys, reef.learner.__main__, reef.training.watch, reef.training.prompts, {names}; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "False"
