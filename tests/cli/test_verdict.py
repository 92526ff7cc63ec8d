"""`reef verdict show` against a running gateway."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from reef.artifacts.tree import content_id
from reef.types import Component, File, Verdict
from tests.cli.test_cli import reef
from tests.support.gateway import Service, service
from tests.support.verdicts import simulated


def settled(running: Service, verdict: Verdict | None) -> str:
    """A candidate with this verdict, or with none yet."""
    controller = running.state.controller
    head = controller.ensure_scenario("default", starter={"AGENTS.md": File(b"start")})
    tree = {"AGENTS.md": File(b"changed")}
    commit = controller.artifacts.commit(tree, parents=[head.commit], message="Change", trailers={})
    candidate = controller.open_candidate(
        scenario="default", component=Component.HARNESS, recipe="test", base_step=head.step, branch=f"candidates/{commit[:9]}",
        commit=commit, content_id=content_id(tree), summary="Change", reports=(),
    )  # fmt: skip
    if verdict is not None:
        controller.settle(candidate, verdict, expected_head=head.step)
    return candidate.id


def test_a_verdict_is_shown_and_computed_again(tmp_path: Path) -> None:
    verdict = simulated(1, effect=-0.3)
    with service(tmp_path, upstream="http://127.0.0.1:1/v1") as running:
        candidate = settled(running, verdict)
        shown = reef("verdict", "show", candidate, "--url", running.url)
        assert shown.returncode == 0, shown.stderr
        assert "reject after" in shown.stdout
        assert "with a chance of 80 %" in shown.stdout
        again = reef("verdict", "show", candidate, "--recompute", "--url", running.url)
        assert (again.returncode, again.stdout) == (0, f"equal: {len(verdict.trials)} trials lead to reject again, to the last bit\n")
        told = json.loads(reef("verdict", "show", candidate, "--json", "--url", running.url).stdout)
        assert told["effect"] == verdict.effect
        assert len(told["trials"]) == len(verdict.trials)


def test_a_verdict_that_somebody_changed_is_told_with_the_field(tmp_path: Path) -> None:
    with service(tmp_path, upstream="http://127.0.0.1:1/v1") as running:
        candidate = settled(running, simulated(1, effect=-0.3))
        with sqlite3.connect(tmp_path / ".reef" / "reef.db") as database:
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                database.execute(f'DROP TRIGGER "{name}"')
            database.execute("UPDATE trials SET score = score - 1e-6 WHERE position = 1")
        database.close()
        done = reef("verdict", "show", candidate, "--recompute", "--url", running.url)
        assert done.returncode == 1
        assert done.stdout.startswith("DIFFERENT: ")


def test_a_candidate_without_a_verdict_is_an_error_with_its_state(tmp_path: Path) -> None:
    with service(tmp_path, upstream="http://127.0.0.1:1/v1") as running:
        done = reef("verdict", "show", settled(running, None), "--url", running.url)
        assert done.returncode == 1
        assert "has no verdict" in done.stderr
        assert "It is proposed" in done.stderr
