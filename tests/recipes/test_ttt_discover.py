"""The certifier is not to be fooled, the search reuses and explores, and the classical baseline is what it is said to be."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.traffic import Gateway
from recipes.ttt_discover import archive, classical
from recipes.ttt_discover.archive import Archive
from recipes.ttt_discover.grading import worth
from recipes.ttt_discover.problems import Problem, Refused, named
from recipes.ttt_discover.problems.circle_packing import certify, exact
from recipes.ttt_discover.problems.golomb_ruler import marks
from recipes.ttt_discover.problems.low_autocorrelation import energy
from recipes.ttt_discover.recipe import TTTDiscoverRecipe
from recipes.ttt_discover.search import Search
from reef import config as configuration
from reef.errors import ConfigError, UpstreamError
from reef.evaluation.tasks import grader_for, load_tasks
from reef.gateway.auth import Auth
from reef.types import CandidateState, Component
from tests.support.gateway import service, until
from tests.support.upstream import Reply, Seen, message, upstream, whole
from tests.support.weights import SCENARIO, Lab

EXAMPLE = Path(__file__).parents[2] / "recipes" / "ttt_discover" / "examples" / "ttt_discover" / "serve.yaml"
FOUR = "[[0.25, 0.25, 0.25], [0.75, 0.25, 0.25], [0.25, 0.75, 0.25], [0.75, 0.75, 0.25]]"


def test_a_packing_whose_circles_touch_is_one() -> None:
    found = named("circle_packing:4").verify(f"Here it is:\n```json\n{FOUR}\n```\nDone.")
    assert found.value == 1
    assert named("circle_packing:4").verify(found.solution) == found


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (FOUR.replace("[0.25, 0.25, 0.25]", "[0.250000001, 0.25, 0.25]"), "overlap"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[0.25, 0.25, 0.250000001]"), "not inside"),
        (FOUR.replace("0.25, 0.25, 0.25]", "0.25, 0.25, 0.250000000000000000000000001]"), "not inside"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[0.25, 0.25, -0.25]"), "no positive radius"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[0.25, 0.25, 0]"), "no positive radius"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[-0.25, 0.25, 0.25]"), "not inside"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[7, 7, 0.25]"), "not inside"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[NaN, 0.25, 0.25]"), "not a number"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[0.25, 0.25, NaN]"), "not a number"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[0.25, 0.25, Infinity]"), "not a number"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[0.25, 0.25, 1e-999999999]"), "not a number"),
        (FOUR.replace("[0.25, 0.25, 0.25]", f"[0.25, 0.25, 0.{'1' * 5000}]"), "not a number"),
        (FOUR.replace("[0.25, 0.25, 0.25]", '["0.25", 0.25, 0.25]'), "triples"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[true, 0.25, 0.25]"), "triples"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[0.25, 0.25]"), "triples"),
        (FOUR.replace("[0.25, 0.25, 0.25], ", ""), "3 circles"),
        (FOUR.replace("]]", "], [0.5, 0.5, 0.01]]"), "5 circles"),
        (FOUR.replace("[0.25, 0.25, 0.25]", "[0.75, 0.25, 0.25]"), "overlap"),
        ("no circles today", "no JSON list"),
        ("[" * 100_000, "no JSON list"),
        ("[]", "0 circles"),
        ("x" * 300_000, "too long"),
    ],
)
def test_what_is_no_packing_is_refused(answer: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        named("circle_packing:4").verify(answer)


@given(st.integers(1, 4), st.integers(1, 10**18))
def test_no_overlap_is_too_small_to_be_seen(which: int, denominator: int) -> None:
    circles = exact(json.loads(FOUR))
    grown = [
        circle._replace(r=circle.r + Fraction(1, denominator)) if number == which - 1 else circle for number, circle in enumerate(circles)
    ]
    with pytest.raises(Refused):
        certify(grown, size=4)


def test_the_classical_baseline_packs_26_circles_beyond_2_6() -> None:
    pytest.importorskip("scipy")
    best = next(found for found in classical.improvements(26, seconds=60, seed=1) if found.value > Fraction(26, 10))
    assert certify(best.circles, size=26) == best.value
    assert best.value < Fraction(26359831, 10**7), "nobody has seen a better one"


def test_the_best_sequence_of_length_13_is_barkers() -> None:
    least = min(energy("".join(signs)) for signs in itertools.product("+-", repeat=13))
    barker = named("low_autocorrelation:13").verify("It is + + + + + - - + + - + - +")
    assert barker.solution == "+++++--++-+-+"
    assert barker.value == Fraction(13**2, 2 * least)
    assert float(barker.value) == pytest.approx(14.083, abs=1e-3)
    for wrong in ("", "+" * 12, "++--" * 4, "I would rather not"):
        with pytest.raises(Refused):
            named("low_autocorrelation:13").verify(wrong)


def most_marks(length: int) -> int:
    """Of a ruler of this length, by trying all."""

    def longest(there: tuple[int, ...], distances: frozenset[int], first: int) -> int:
        best = len(there)
        for mark in range(first, length + 1):
            new = {mark - other for other in there}
            if len(new) == len(there) and not new & distances:
                best = max(best, longest((*there, mark), distances | new, mark + 1))
        return best

    return longest((0,), frozenset(), 1)


def test_the_best_rulers_are_as_long_as_is_said() -> None:
    for length in (1, 2, 3, 6, 10, 11, 16, 17):
        problem = named(f"golomb_ruler:{length}")
        assert problem.score(Fraction(most_marks(length))) == 1.0, length
        assert problem.score(Fraction(most_marks(length) - 1)) < 1.0, length
    assert named("golomb_ruler:55").verify("0 1 6 10 23 26 34 41 53 55").value == 10


@pytest.mark.parametrize(
    ("answer", "solution"),
    [
        ("0, 1, 4, 9", "0, 1, 4, 9"),
        ("Here you are:\n[3, 1, 8]", "3, 1, 8"),
        ("0, 1, 2, 3", "0, 1"),
        ("0, 1, 1, 5", "0, 1"),
        ("0, 1, 3, 56, 7", "0, 1, 3"),
        ("0, 1, 3, 0007, 9", "0, 1, 3"),
        ("0, 1, 3, " + "9" * 5000, "0, 1, 3"),
        ("5, 3, 1", "5, 3"),
        ("٣ and 4", "4"),
        ("none", ""),
        ("60, 1", ""),
        ("1, " * 100_000, ""),
    ],
)
def test_a_list_counts_as_far_as_it_is_a_ruler(answer: str, solution: str) -> None:
    problem = named("golomb_ruler:55")
    if not solution:
        with pytest.raises(Refused):
            problem.verify(answer)
        return
    found = problem.verify(answer)
    assert found.solution == solution
    assert found.value == solution.count(",") + 1
    assert problem.verify(found.solution) == found
    assert problem.prompt(found.solution).endswith(solution)


@given(st.lists(st.integers(0, 60), max_size=12))
def test_what_is_kept_of_a_list_is_a_ruler(numbers: list[int]) -> None:
    kept = list(marks(map(str, numbers), length=55))
    assert kept == numbers[: len(kept)]
    apart = [abs(one - two) for one, two in itertools.combinations(kept, 2)]
    assert len(set(apart)) == len(apart)
    assert 0 not in apart
    assert all(mark <= 55 for mark in kept)


def test_the_gate_of_the_example_asks_the_problem_from_starts_that_hold_and_grades_by_its_verifier() -> None:
    config = configuration.load(EXAMPLE)
    tasks = load_tasks(EXAMPLE.parent / config.evaluation.tasks, shares=config.evaluation.splits)
    problem = named("golomb_ruler:55")
    for task in tasks:
        _, shown, start = task.prompt.partition("to be improved: ")
        assert task.prompt == problem.prompt(problem.verify(start).solution if shown else "")
        assert task.grader_options["arguments"] == {"problem": "golomb_ruler:55"}
    (score,) = {
        float(grader_for(task).grade(task=task, workspace=Path(), answer="0, 1, 4, 9, 15", run_command=None).value) for task in tasks[:1]
    }  # type: ignore[arg-type]
    assert score == problem.score(Fraction(5))
    assert worth(Path(), "I do not know", problem="golomb_ruler:55")[0] == 0.0


@pytest.mark.parametrize(
    "spec",
    [
        "circle_packing",
        "circle_packing:0",
        "circle_packing:x",
        "nothing:3",
        "json:JSONDecoder:3",
        "low_autocorrelation:2",
        "golomb_ruler:0",
        "golomb_ruler:284",
    ],
)
def test_a_problem_that_there_is_not_is_said(spec: str) -> None:
    with pytest.raises(ConfigError):
        named(spec)


def test_the_best_is_reused_and_others_are_explored() -> None:
    search = Archive()
    assert search.pick() is search.root
    good, bad = search.expand(search.root, [("good", 1.0), ("bad", 0.1)])
    picked = []
    for _ in range(40):
        one = search.pick()
        picked.append(one.id)
        search.expand(one, [])
    assert picked[0] == good.id, "the best first"
    assert picked.count(good.id) > picked.count(bad.id) > 0
    assert 0 in picked, "and from the start again"
    assert search.expansions == 41


def test_what_leads_on_is_followed() -> None:
    search = Archive(exploration=0.1)
    poor, fair = search.expand(search.root, [("poor", 0.1), ("fair", 0.5)])
    (great,) = search.expand(poor, [("great", 0.9)])
    assert (poor.quality, search.root.quality) == (0.9, 0.5)
    assert search.pick() in (great, poor)
    assert fair.visits == 0


def test_a_search_that_was_stopped_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "archive.jsonl"
    first = Archive(file)
    (one,) = first.expand(first.root, [("one", 1.0)])
    first.expand(one, [("two", 2.0)])
    with file.open("a") as lines:
        lines.write('{"expand": 0, "fou')  # killed while it wrote
    again = Archive(file)
    assert again.entries == first.entries
    assert again.best.solution == "two"
    file.write_text("something else\n")
    with pytest.raises(ConfigError):
        Archive(file)


def test_the_archive_is_bounded_and_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST", 5)
    search = Archive()
    search.expand(search.root, [(str(number), float(number)) for number in range(20)])
    assert sorted(entry.value for entry in search.entries.values()) == [0.0, 16.0, 17.0, 18.0, 19.0]
    assert search.root.id in search.entries


class Flipping:
    """A model that writes a sequence of its own, or the one it is shown with one sign turned: chosen by how often it was asked."""

    def __init__(self, size: int) -> None:
        self.asked = 0
        self.size = size

    def __call__(self, seen: Seen) -> Reply:
        if seen.path.endswith("/models"):
            return whole({"object": "list", "data": []})
        self.asked += 1
        _, shown, best = seen.body["messages"][0]["content"].partition("to be improved: ")
        if self.asked % 7 == 0:
            return whole(message("I do not know"))
        signs = list(best) if shown else ["+" if (self.asked * place) % 3 else "-" for place in range(self.size)]
        place = self.asked * 5 % self.size
        signs[place] = "-" if signs[place] == "+" else "+"
        return whole(message("".join(signs)))


def test_a_search_asks_verifies_reports_and_gets_better(tmp_path: Path) -> None:
    problem: Problem = named("low_autocorrelation:13")
    with upstream(Flipping(13)) as model, service(tmp_path, upstream=model.url, auth=Auth(token=None)) as gateway:
        until(lambda: gateway.state.scenarios.heads.get("default"))
        to = Gateway(url=gateway.url, scenario="default")
        search = Search(problem, gateway=to, archive=Archive(tmp_path / "archive"), siblings=4, name="test")
        done = search.run(rounds=12, seconds=60)
        reports = gateway.store.reports("default", limit=100)
        assert done.attempts == len(reports) == 48
        assert done.best is not None
        assert done.best_after > 4, "what came of the first start was improved on"
        assert done.best == problem.verify(done.solution).value
        assert done.refused == {"there is no sequence of signs in the answer": sum(report.score == 0.0 for report in reports)}
        groups = [report.metadata["group"] for report in reports]
        assert {groups.count(group) for group in groups} == {4}
        assert max(report.score or 0.0 for report in reports) == problem.score(done.best)
        goes_on = Search(problem, gateway=to, archive=Archive(tmp_path / "archive"), siblings=4, name="test-2")
        assert goes_on.progress.best == done.best
    with pytest.raises(UpstreamError):
        Search(problem, gateway=Gateway(url="http://127.0.0.1:1", scenario="x", timeout_s=1), archive=Archive(), siblings=2, name="x").run(
            rounds=1, seconds=5
        )


def test_the_example_is_a_recipe_on_weights() -> None:
    config = configuration.load(EXAMPLE)
    recipe = TTTDiscoverRecipe(batch_size=config.reef.batch_size, options=config.reef.options)
    assert (recipe.loss, recipe.needs_tokens) == ("ttt_discover", True)


def test_attempts_from_one_start_become_a_candidate(lab: Callable[..., Lab]) -> None:
    """Trains the tiny model; skipped without the extra `train`."""
    here, problem = lab(), named("low_autocorrelation:13")
    answers = ("+++++--++-+-+", "+-+-+-+-+-+-+", "I do not know")
    for number, answer in enumerate(answers):
        score = problem.score(problem.verify(answer).value) if number < 2 else 0.0
        here.run(f"run-{number}", problem.prompt("" if number else "+" * 13), answer, score, metadata={"group": "run"})
    recipe = TTTDiscoverRecipe(batch_size=3, options={"siblings": 3, "loss": {"kl": 0.1}})
    assert here.learner(recipe).step(SCENARIO)
    (candidate,) = here.candidates()
    assert (candidate.state, candidate.component, candidate.recipe) == (CandidateState.RELEASED, Component.MODEL, "ttt_discover")
    assert here.store.unconsumed_reports(SCENARIO, recipe.name) == []
