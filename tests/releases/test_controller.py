import subprocess
from pathlib import Path

import pytest
import sqlalchemy as sa
from chains import STARTER, Bench, verdict

from reef.artifacts.tree import content_id
from reef.errors import Conflict, InvalidRequest, NotFound, StaleHead
from reef.experience.database import create_tables
from reef.releases import mirror
from reef.types import CandidateState, Component, Decision, File


def git(bench: Bench, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=bench.artifacts.path, check=True, capture_output=True, text=True, timeout=30).stdout


def test_a_new_scenario_starts_with_the_starter_tree(bench: Bench) -> None:
    head = bench.controller.head("default")
    assert (head.step, head.operation, head.content_id) == (1, "import", content_id(STARTER))
    assert bench.controller.scenarios() == {"default": 1}
    assert bench.controller.tree("default", 1) == STARTER
    assert bench.controller.ensure_scenario("default", starter={}) == head


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "a b", "a\n", "é", "x" * 129])
def test_a_name_that_cannot_be_a_scenarios_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidRequest):
        bench.controller.ensure_scenario(name, starter=STARTER)


@pytest.mark.parametrize("name", ["team:a", "-x", "x.lock", "a..b", "v1.", "gpt-4.1_mini", "x" * 128])
def test_every_name_a_scenario_may_have_works_as_branch_and_tag(bench: Bench, name: str) -> None:
    head = bench.controller.ensure_scenario(name, starter=STARTER)
    assert bench.candidate("x", scenario=name).scenario == name
    assert bench.artifacts.ref(mirror.head_ref(name)) == bench.artifacts.ref(mirror.step_ref(name, 1)) == head.commit
    assert bench.controller.repair()[1:] == []  # the first line is the candidate's


def test_what_is_not_there_is_named_with_a_hint(bench: Bench) -> None:
    for ask in (
        lambda: bench.controller.head("nope"),
        lambda: bench.controller.release("nope", 1),
        lambda: bench.controller.release("default", 7),
        lambda: bench.controller.candidate("c-0"),
        lambda: bench.controller.rollback("default", 7),
    ):
        with pytest.raises(NotFound) as caught:
            ask()
        assert caught.value.hint


def test_promotion_publishes_the_candidates_bytes_and_keeps_the_evidence(bench: Bench) -> None:
    candidate = bench.candidate("better", reports=("r1", "r2"))
    given = verdict(Decision.PROMOTE)
    release = bench.controller.settle(candidate, given, expected_head=1, consumed=("r1", "r2"), state={"temperature": 0.5})
    assert release is not None
    assert (release.step, release.operation, release.candidate, release.recipe) == (2, "train", candidate.id, "cordis")
    assert bench.controller.head("default") == release
    assert bench.controller.tree("default", 2)["AGENTS.md"] == File(b"better")
    assert "+better" in bench.controller.diff("default", 1, 2)
    settled = bench.controller.candidate(candidate.id)
    assert (settled.state, settled.reason) == (CandidateState.RELEASED, "promote it")
    assert bench.controller.verdict(candidate.id) == given
    assert bench.consumed() == {"r1": candidate.id, "r2": candidate.id}
    assert bench.controller.recipe_state("default", "cordis") == {"temperature": 0.5}
    assert bench.controller.verify("default") == []


@pytest.mark.parametrize("decision", [Decision.REJECT, Decision.INCONCLUSIVE])
def test_a_candidate_that_is_not_promoted_keeps_branch_state_and_reason(bench: Bench, decision: Decision) -> None:
    candidate = bench.candidate("worse", reports=("r1",))
    bench.controller.mark(candidate.id, CandidateState.JUDGING)
    assert bench.controller.settle(candidate, verdict(decision), expected_head=1, consumed=("r1",)) is None
    settled = bench.controller.candidate(candidate.id)
    assert (settled.state.value, settled.reason) == ("rejected" if decision is Decision.REJECT else "inconclusive", f"{decision} it")
    assert bench.artifacts.ref(candidate.branch) == candidate.commit
    assert bench.controller.head("default").step == 1
    assert bench.consumed() == {"r1": candidate.id}
    assert bench.controller.candidates("default", states=(settled.state,)) == [settled]


def test_a_stale_publisher_changes_nothing(bench: Bench) -> None:
    first, second = bench.candidate("one", reports=("r1",)), bench.candidate("two", reports=("r2",))
    bench.controller.settle(first, verdict(Decision.PROMOTE), expected_head=1, consumed=("r1",))
    with pytest.raises(StaleHead, match="release 2, not 1") as caught:
        bench.controller.settle(second, verdict(Decision.PROMOTE), expected_head=1, consumed=("r2",), state={"x": 1})
    assert caught.value.hint
    assert bench.controller.head("default").step == 2
    assert bench.controller.candidate(second.id).state is CandidateState.PROPOSED
    assert bench.controller.verdict(second.id) is None
    assert bench.consumed() == {"r1": first.id}
    assert bench.controller.recipe_state("default", "cordis") == {}


def test_a_report_is_consumed_once_by_each_recipe(bench: Bench) -> None:
    bench.promote("one", reports=("r1",))
    again = bench.candidate("two", reports=("r1", "r2"))
    with pytest.raises(Conflict, match="r1 was consumed"):
        bench.controller.settle(again, verdict(Decision.PROMOTE), expected_head=2, consumed=("r1", "r2"))
    assert bench.controller.head("default").step == 2
    bench.controller.consume("default", "cordis", ["r1", "r3"])
    bench.controller.consume("default", "other", ["r1"] * 2)
    assert set(bench.consumed()) == {"r1", "r3"}


def test_a_candidate_has_one_end(bench: Bench) -> None:
    candidate = bench.candidate("one")
    bench.controller.settle(candidate, verdict(Decision.REJECT), expected_head=1)
    with pytest.raises(Conflict, match="rejected"):
        bench.controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=1)
    with pytest.raises(Conflict):
        bench.controller.mark(candidate.id, CandidateState.JUDGING)
    with pytest.raises(Conflict, match="marked released"):
        bench.controller.mark(bench.candidate("two").id, CandidateState.RELEASED)
    assert bench.controller.head("default").step == 1


def test_the_same_bytes_as_the_head_are_never_released(bench: Bench) -> None:
    same = bench.candidate("# Rules\n")
    assert same.content_id == bench.controller.head("default").content_id
    with pytest.raises(Conflict, match="no change"):
        bench.controller.settle(same, verdict(Decision.PROMOTE), expected_head=1)


def test_a_candidate_whose_content_id_is_not_that_of_its_commit_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidRequest, match="content id"):
        bench.controller.open_candidate(
            scenario="default", component=Component.HARNESS, recipe="cordis", base_step=1, branch="candidates/default/x",
            commit=bench.controller.head("default").commit, content_id="0" * 64, summary="", reports=(),
        )  # fmt: skip


def test_every_candidate_whose_judging_began_has_spent_its_share_of_the_error(bench: Bench) -> None:
    candidates = [bench.candidate(f"v{number}") for number in range(3)]
    for candidate in candidates[:2]:
        bench.controller.mark(candidate.id, CandidateState.JUDGING)
    bench.controller.mark(candidates[0].id, CandidateState.ABANDONED, "the upstream died")
    bench.controller.mark(candidates[2].id, CandidateState.REJECTED, "not admitted")
    assert bench.controller.spent("default") == 2
    assert bench.controller.spent("default", excluding=candidates[1].id) == 1


def test_rollback_is_a_new_release_with_the_old_content(bench: Bench) -> None:
    bench.promote("better")
    back = bench.controller.rollback("default", 1, expected_head=2)
    assert (back.step, back.operation, back.content_id) == (3, "rollback", content_id(STARTER))
    assert bench.controller.tree("default", 3) == STARTER
    with pytest.raises(StaleHead):
        bench.controller.rollback("default", 2, expected_head=2)
    with pytest.raises(Conflict, match="already has the content"):
        bench.controller.rollback("default", 1)
    assert [release.step for release in bench.controller.releases("default")] == [1, 2, 3]
    assert bench.controller.verify("default") == []


def test_plain_git_shows_the_chain(bench: Bench, tmp_path: Path) -> None:
    release = bench.promote("better", reports=("rep-1", "rep-2"))
    bench.controller.rollback("default", 1)
    log = git(bench, "log", "--first-parent", "--format=%s|%(trailers:key=Reef-Step,valueonly,separator=%x2C)", "releases/default")
    assert log.splitlines() == ["Back to release 1|3", "Say better|2", "Starter harness|1"]
    assert git(bench, "rev-parse", "default/step-2").strip() == release.commit
    body = git(bench, "show", "-s", "--format=%(trailers)", "default/step-2")
    for line in (
        "Reef-Scenario: default",
        "Reef-Recipe: cordis",
        f"Reef-Candidate: {release.candidate}",
        "Reef-Report: rep-1",
        "Reef-Report: rep-2",
    ):
        assert line in body
    subprocess.run(["git", "clone", "-q", str(bench.artifacts.path), str(tmp_path / "clone")], check=True, timeout=30)
    assert (tmp_path / "clone" / "AGENTS.md").read_text() == "# Rules\n"
    assert git(bench, "fsck", "--strict") == ""


@pytest.mark.parametrize(("table", "column"), [("releases", "summary"), ("verdicts", "reason"), ("trials", "score")])
@pytest.mark.parametrize("statement", ["DELETE FROM {table}", "UPDATE {table} SET {column} = {column}"])
def test_the_database_refuses_to_change_history(bench: Bench, table: str, column: str, statement: str) -> None:
    bench.promote("better")
    with pytest.raises(sa.exc.IntegrityError, match="append-only"), bench.engine.begin() as tx:
        tx.exec_driver_sql(statement.format(table=table, column=column))


@pytest.mark.parametrize(
    ("tampering", "complaint"),
    [
        ("UPDATE releases SET summary = 'nicer' WHERE step = 2", "step 2: was changed"),
        ('UPDATE releases SET "commit" = (SELECT "commit" FROM releases WHERE step = 1) WHERE step = 2', "content id"),
        ("UPDATE releases SET hash = 'x' WHERE step = 1", "step 2: does not follow"),
        ("DELETE FROM releases WHERE step = 2", "a release is missing"),
        ("UPDATE heads SET step = 1", "the head is step 1, the chain ends at step 3"),
    ],
)
def test_an_audit_finds_tampering(bench: Bench, tampering: str, complaint: str) -> None:
    bench.promote("two")
    bench.promote("three")
    assert bench.controller.verify("default") == []
    with bench.engine.begin() as tx:
        triggers = [(table, f"refuse_{verb}") for table in ("releases", "verdicts", "trials") for verb in ("UPDATE", "DELETE")]
        for table, trigger in (*triggers, ("heads", "advance")):
            where = f" ON {table}" if tx.dialect.name == "postgresql" else ""
            tx.exec_driver_sql(f"DROP TRIGGER {table}_{trigger}{where}")
        tx.exec_driver_sql(tampering)
    assert any(complaint in problem for problem in bench.controller.verify("default"))


@pytest.mark.parametrize("statement", ["UPDATE heads SET step = step + 2", "UPDATE heads SET step = step - 1", "DELETE FROM heads"])
def test_the_database_moves_a_head_to_the_next_step_only(bench: Bench, statement: str) -> None:
    bench.promote("better")
    with pytest.raises(sa.exc.IntegrityError), bench.engine.begin() as tx:
        tx.exec_driver_sql(statement)


def test_nothing_gets_around_the_refusal(bench: Bench) -> None:
    bench.promote("better")
    sqlite = bench.engine.dialect.name == "sqlite"
    for table in ("releases", "verdicts", "trials", "heads"):
        statement = f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}" if sqlite else f"TRUNCATE {table} CASCADE"
        with pytest.raises(sa.exc.IntegrityError, match="append-only"), bench.engine.begin() as tx:
            tx.exec_driver_sql(statement)


def test_repair_brings_refs_back_and_abandons_what_was_half_judged(bench: Bench) -> None:
    bench.promote("two")
    judging = bench.candidate("three")
    bench.controller.mark(judging.id, CandidateState.JUDGING)
    assert [line for line in bench.controller.repair() if "abandoned" not in line] == []
    assert bench.controller.candidate(judging.id).state is CandidateState.ABANDONED
    for ref in ("refs/heads/releases/default", "refs/tags/default/step-1", f"refs/heads/{judging.branch}"):
        git(bench, "update-ref", "-d", ref)
    git(bench, "update-ref", "refs/tags/default/step-2", bench.controller.release("default", 1).commit)
    assert len(bench.controller.repair()) == 4
    assert bench.artifacts.ref("releases/default") == bench.controller.head("default").commit
    assert bench.artifacts.ref("refs/tags/default/step-2") == bench.controller.head("default").commit
    assert bench.artifacts.ref(judging.branch) == judging.commit
    assert bench.controller.repair() == []


def test_repair_leaves_a_candidate_branch_alone_that_a_person_worked_on(bench: Bench) -> None:
    candidate = bench.candidate("two")
    mine = bench.artifacts.commit({"AGENTS.md": File(b"by hand")}, parents=[candidate.commit], message="By hand")
    bench.artifacts.set_ref(candidate.branch, mine)
    bench.controller.repair()
    assert bench.artifacts.ref(candidate.branch) == mine


def test_a_clone_shows_the_first_scenario_whatever_its_name(tmp_path: Path) -> None:
    bench = Bench.open(tmp_path)
    create_tables(bench.engine)
    for name in ("mine", "other"):
        bench.controller.ensure_scenario(name, starter=STARTER)
    assert git(bench, "symbolic-ref", "HEAD").strip() == "refs/heads/releases/mine"
