"""A shadow and a replay with the real service and the real Pi: what was asked is answered again off the serving path, and no head moves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import content_id
from reef.experience.database import connect
from reef.releases import mirror
from reef.releases.controller import Controller
from reef.releases.rollout import Mode, Plan
from reef.types import CandidateState, Component, File
from tests.support.chain import GOOD
from tests.support.service import serving, wait_for

ASKED = {"model": "reef", "messages": [{"role": "user", "content": "Write the sum of 17 and 25 to sum.txt"}]}


def test_a_candidate_answers_a_recorded_session_and_is_held(tmp_path: Path) -> None:
    with serving(tmp_path, "--upstream", "rehearsal") as service:
        service.post("/s/default/run-1/v1/chat/completions", ASKED)
        wait_for(lambda: service.get("/reef/scenarios")["scenarios"], "the scenario to exist")
        engine = connect(f"sqlite:///{service.state / 'reef.db'}")
        controller = Controller(engine, ArtifactRepository(service.state / "artifacts.git"), plan=Plan(mode=Mode.SHADOW))
        tree = {**controller.tree("default", 1), "AGENTS.md": File(b"# How to work\nBe brief.\n")}
        commit = controller.artifacts.commit(tree, parents=[controller.head("default").commit], message="brief")
        candidate = controller.open_candidate(
            scenario="default", component=Component.HARNESS, recipe="test", base_step=1, branch=mirror.candidate_branch("default", "x"),
            commit=commit, content_id=content_id(tree), summary="Be brief", reports=(),
        )  # fmt: skip
        controller.settle(candidate, GOOD, expected_head=1)

        def shown() -> dict[str, object] | None:
            return service.get(f"/reef/candidates/{candidate.id}")["rollout"]["finding"]

        finding = wait_for(shown, "the shadow to be done", within_s=90)
        assert not finding["error"], finding
        (answer,) = finding["answers"]
        assert (answer["session"], answer["failed"]) == ("run-1", False)
        assert answer["candidate"]
        assert controller.candidate(candidate.id).state is CandidateState.HELD
        assert controller.head("default").step == 1
        replayed = [record for record in service.get("/reef/scenarios/default/records")["records"] if record["origin"] == "trial"]
        assert {record["session"].rpartition(":")[0] for record in replayed} == {f"shadow:{candidate.id}:run-1"}
        done = subprocess.run(
            [sys.executable, "-m", "reef", "replay", "run-1", "--url", service.url], capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "run-1 with the head" in done.stdout
        engine.dispose()
