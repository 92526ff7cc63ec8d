"""Failing reports become candidates, on a real store, a real repository and the rehearsal model as a process."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from typing import Any

import pytest

from cordis import trajectory
from cordis.recipe import KEPT_PASSING, CordisRecipe
from reef.artifacts.tree import content_id
from reef.errors import ConfigError, InvalidTree, ProposalError
from reef.harness.tree import validate
from reef.learner.recipe import Attempt, Batch, Proposal, Selection
from reef.types import Candidate, CandidateState, Component, Decision, Origin, Trial, TrialEnd, Verdict

ISO = "Dates must be written as YYYY-MM-DD in our files."
DATE = "Write the date 7 March 2024 to date.txt"


def recipe(*, batch_size: int = 1, **options: Any) -> CordisRecipe:
    return CordisRecipe(batch_size=batch_size, options=options)


def attempt(lab: Any, proposal: Proposal, *, reason: str = "it did worse", verdict: Verdict | None = None) -> Attempt:
    tree = lab.artifacts.read(proposal.commit)
    candidate = Candidate(
        id="c", scenario="demo", component=Component.HARNESS, recipe="cordis", base_step=1, branch=proposal.branch, commit=proposal.commit,
        content_id=content_id(tree), state=CandidateState.REJECTED, summary=proposal.summary, reason=reason, reports=(), created_at=0.0,
    )  # fmt: skip
    return Attempt(candidate, verdict)


def propose(lab: Any, model: Any, *reports: Any, earlier: tuple[Attempt, ...] = (), **options: Any) -> Proposal:
    return recipe(**options).propose(Batch(reports), parent=lab.head, earlier=earlier, bench=lab.bench(model))


@pytest.mark.parametrize("rehearsal", [("useful",)], indirect=True)
def test_feedback_becomes_a_skill_on_a_branch_of_its_own(lab: Any, rehearsal: Any) -> None:
    report = lab.failed_run(DATE, ISO)
    proposal = propose(lab, rehearsal, report)
    assert proposal.branch.startswith("candidates/demo/")
    assert lab.artifacts.ref(proposal.branch) == proposal.commit
    assert ISO in proposal.summary
    before, after = lab.artifacts.read(lab.head.commit), lab.artifacts.read(proposal.commit)
    validate(after)
    assert set(after) - set(before) == {"skills/date-conventions/SKILL.md"}
    skill = after["skills/date-conventions/SKILL.md"].data.decode()
    assert ISO in skill
    assert "March" not in skill, "what was learned is the rule, not the task"
    assert rehearsal.purposes[0].startswith("propose-")


@pytest.mark.parametrize("rehearsal", [("useful",)], indirect=True)
def test_the_commit_says_where_it_comes_from(lab: Any, rehearsal: Any) -> None:
    report = lab.failed_run(DATE, ISO)
    proposal = propose(lab, rehearsal, report)
    log = subprocess.run(
        ["git", "-C", lab.artifacts.path, "log", "-1", "--format=%P%n%an%n%s%n%(trailers:only)", proposal.commit],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert log[:3] == [lab.head.commit, "Reef Cordis", proposal.summary]
    assert {f"Reef-Report: {report.id}", "Reef-Scenario: demo", "Reef-Recipe: cordis", "Reef-Base-Step: 1"} <= set(log)
    assert f"Reef-Content-Id: {content_id(lab.artifacts.read(proposal.commit))}" in log


@pytest.mark.parametrize("rehearsal", [("harmful", "useless", "useful")], indirect=True)
def test_each_attempt_sees_those_before_it_and_their_reasons(lab: Any, rehearsal: Any) -> None:
    report = lab.failed_run(DATE, ISO)
    trial = Trial("task-secret-1", "head", 0, "id", TrialEnd.SCORED, 1.0, "expected 2021-04-14", "trial:1", 0.1)
    verdict = Verdict(
        Decision.REJECT, "task-secret-1 got worse", effect=-0.5, low=-0.9, high=-0.1, pairs=8, wins=0, losses=4, evidence=0.1, alpha=0.05,
        seconds=3.0, trials=(trial,),
    )  # fmt: skip
    harmful = propose(lab, rehearsal, report)
    assert "do not use tools" in lab.artifacts.read(harmful.commit)["AGENTS.md"].data.decode()
    first = attempt(lab, harmful, verdict=verdict)
    useless = propose(lab, rehearsal, report, earlier=(first,))
    assert "friendly tone" in lab.artifacts.read(useless.commit)["AGENTS.md"].data.decode()
    useful = propose(lab, rehearsal, report, earlier=(first, attempt(lab, useless, reason="refused at the door")))
    assert "skills/date-conventions/SKILL.md" in lab.artifacts.read(useful.commit)
    shown = rehearsal.asked[-1][1]["content"]
    assert "worse in 4" in shown
    assert "refused at the door" in shown
    assert "friendly tone" in shown, "the diff of what was tried"
    assert "task-secret-1" not in shown
    assert "2021-04-14" not in shown
    assert len({proposal.branch for proposal in (harmful, useless, useful)}) == 3


@pytest.mark.parametrize("rehearsal", [("invalid",)], indirect=True)
def test_an_invalid_answer_is_asked_again_with_the_reason(lab: Any, rehearsal: Any) -> None:
    proposal = propose(lab, rehearsal, lab.failed_run(DATE, ISO))
    assert ISO in proposal.summary
    assert len(rehearsal.asked) == 2
    retry = rehearsal.asked[1][-1]["content"]
    assert retry.startswith("reef-retry: 1")
    assert "no complete JSON object" in retry


@pytest.mark.parametrize("rehearsal", [("useful",)], indirect=True)
def test_feedback_on_several_kinds_of_work_becomes_one_proposal(lab: Any, rehearsal: Any) -> None:
    reports = [
        lab.failed_run(DATE, f"Wrong! {ISO} Expected 2024-03-07.", session="s1"),
        lab.failed_run("Write the date 21 July 2023 to date.txt", {"comment": "ISO dates please"}, session="s2"),
        lab.failed_run("Write a commit message for: add login form to m.txt", "Use Conventional Commits.", session="s3"),
    ]
    after = lab.artifacts.read(propose(lab, rehearsal, *reports).commit)
    dates = after["skills/date-conventions/SKILL.md"].data.decode()
    assert ISO in dates
    assert "2024-03-07" not in dates
    assert "Conventional Commits" in after["skills/commit-conventions/SKILL.md"].data.decode()


@pytest.mark.parametrize("rehearsal", [("useful",)], indirect=True)
def test_feedback_without_a_recorded_task_becomes_a_rule(lab: Any, rehearsal: Any) -> None:
    trial = lab.record([{"role": "user", "content": "the evaluation's own task"}], origin=Origin.TRIAL)
    report = lab.report(feedback="Always answer in French.", references=(trial.id,))
    proposal = propose(lab, rehearsal, report)
    assert "- Always answer in French.\n" in lab.artifacts.read(proposal.commit)["AGENTS.md"].data.decode()
    assert "the evaluation's own task" not in rehearsal.asked[0][1]["content"]


@pytest.mark.parametrize("rehearsal", [("harmful",)], indirect=True)
def test_the_same_change_is_not_proposed_twice(lab: Any, rehearsal: Any) -> None:
    report = lab.failed_run(DATE, ISO)
    first = propose(lab, rehearsal, report)
    with pytest.raises(ProposalError, match="tried before"):
        propose(lab, rehearsal, report, earlier=(attempt(lab, first),))
    assert len(rehearsal.asked) == 1 + 3


def answer(*edits: dict[str, str], summary: str = "a change") -> str:
    return json.dumps({"summary": summary, "edits": list(edits)})


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../outside.md", "'..'"),
        ("/etc/passwd", "absolute"),
        ("skills/../../x", "'..'"),
        (".git/hooks/x", ".git"),
        ("notes.txt", "no place"),
    ],
)
def test_edits_that_leave_the_tree_are_refused_and_leave_no_branch(lab: Any, scripted: Any, path: str, reason: str) -> None:
    model = scripted(*[answer({"path": path, "action": "write", "content": "x"})] * 3)
    before = lab.artifacts.refs()
    with pytest.raises(ProposalError, match=r"none of 3 answers"):
        propose(lab, model, lab.failed_run(DATE, ISO))
    assert reason in model.asked[1][-1]["content"]
    assert lab.artifacts.refs() == before


def test_write_append_and_delete_are_applied_in_order(lab: Any, scripted: Any) -> None:
    model = scripted(
        "Here is my proposal:\n```json\n"
        + answer(
            {"path": "memory/notes.md", "action": "append", "content": "one"},
            {"path": "memory/notes.md", "action": "append", "content": "two\n"},
            {"path": "skills/verify-before-done/SKILL.md", "action": "delete"},
            {"path": ".gitignore", "action": "write", "content": "memory/\n"},
            {"path": ".gitignore", "action": "delete"},
            summary="# Notes,\n in two lines",
        )
        + "\n```"
    )
    proposal = propose(lab, model, lab.failed_run(DATE, ISO))
    after = lab.artifacts.read(proposal.commit)
    assert after["memory/notes.md"].data == b"one\ntwo\n"
    assert "skills/verify-before-done/SKILL.md" not in after
    assert proposal.summary == "# Notes, in two lines"


def test_a_proposal_that_changes_nothing_is_sent_back(lab: Any, scripted: Any) -> None:
    same = lab.artifacts.read(lab.head.commit)["AGENTS.md"].data.decode()
    good = answer({"path": "AGENTS.md", "action": "append", "content": "- Dates are ISO."})
    model = scripted(answer({"path": "AGENTS.md", "action": "write", "content": same}), good)
    propose(lab, model, lab.failed_run(DATE, ISO))
    assert "no change" in model.asked[1][-1]["content"]


def test_selection_waits_for_a_batch_and_takes_the_oldest_failures(lab: Any) -> None:
    bench = lab.bench()
    receipt = lab.record([{"role": "user", "content": "x"}]).id
    passing = lab.report(score=1.0, references=(receipt,))
    first = lab.report(score=0.0, references=(receipt,))
    silent = lab.report(score=None, references=(receipt,))
    assert recipe(batch_size=2).select(bench) == Selection(), "one failure is not two"
    second = lab.report(score=None, feedback="No.", references=(receipt,))
    lab.report(score=0.9, references=(receipt,))
    lab.report(score=0.1, references=(receipt,))
    found = recipe(batch_size=2).select(bench)
    assert found.batch is not None
    assert [report.id for report in found.batch.reports] == [first.id, second.id]
    assert found.passed_over == (passing.id, silent.id), "what is younger than the batch stays"
    lab.controller.consume("demo", "cordis", [*found.passed_over, first.id, second.id])
    assert recipe(batch_size=2).select(bench).batch is None


def test_the_bar_for_a_failure_is_an_option(lab: Any) -> None:
    receipt = lab.record([{"role": "user", "content": "x"}]).id
    lab.report(score=0.7, references=(receipt,))
    assert recipe().select(lab.bench()).batch is None
    assert recipe(score_below=0.8).select(lab.bench()).batch is not None


def test_passing_reports_never_hide_a_failure(lab: Any) -> None:
    receipt = lab.record([{"role": "user", "content": "x"}]).id
    for _ in range(2 * KEPT_PASSING + 5):
        lab.report(score=1.0, references=(receipt,))
    failure = lab.report(score=0.0, references=(receipt,))
    for _ in range(10):
        found = recipe().select(lab.bench())
        if found.batch is not None:
            break
        assert found.passed_over, "no progress"
        lab.controller.consume("demo", "cordis", found.passed_over)
    assert found.batch is not None
    assert [report.id for report in found.batch.reports] == [failure.id]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"attemps": 3}, "attemps"),
        ({"attempts": 0}, "attempts"),
        ({"proposer": "nobody"}, "nobody"),
        ({"proposer": "cordis.edits:EditPlan"}, "not a cordis.proposer:Proposer"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        recipe(**options)


def test_options_are_read() -> None:
    assert recipe(attempts=5).attempts == 5
    assert recipe().attempts == 3


def test_a_missing_file_cannot_be_deleted(lab: Any) -> None:
    from cordis.edits import apply, parse

    plan = parse(answer({"path": "memory/none.md", "action": "delete"}))
    with pytest.raises(InvalidTree, match="not there"):
        apply(plan, tree=lab.artifacts.read(lab.head.commit))


def test_nothing_is_told_of_sessions_that_held_out_tasks_were_captured_from(lab: Any, scripted: Any) -> None:
    """A proposer that read them would be graded on what it was told."""
    shown = lab.failed_run("Write the date 1 May 2020 to date.txt", ISO, session="s1")
    kept = lab.failed_run("Write the secret of the reef to reef.txt", "The secret is coral.", session="s2")
    records = lab.store.session_records("demo", "s2")
    quoting = lab.report(score=0.0, feedback="It is about coral.", references=[records[-1].id])
    model = scripted(json.dumps({"summary": "s", "edits": [{"path": "memory/x.md", "action": "write", "content": "x"}]}))
    bench = dataclasses.replace(lab.bench(model), withheld=frozenset({"s2"}))
    with pytest.raises(ProposalError, match="held-out"):
        recipe().propose(Batch((kept, quoting)), parent=lab.head, earlier=(), bench=bench)
    assert model.asked == []
    sessions, left_out = trajectory.analyse((shown, kept, quoting), store=lab.store, max_sessions=8, withheld=bench.withheld)
    assert [session.session for session in sessions] == ["s1"] and left_out == 0 and "coral" not in str(sessions)
