"""Review, pins, import, audit and gc from the command line, against a running gateway and beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reef.artifacts.folders import lay_out
from reef.artifacts.tree import content_id
from reef.harness.tree import starter
from reef.releases import mirror
from reef.releases.controller import Controller
from reef.types import Candidate, Component, Decision, File
from tests.support.chain import GOOD, publish
from tests.support.gateway import Service, service

SETTINGS = {"settings/pi.json": File(b'{"defaultThinkingLevel": "low"}')}


@dataclass
class Place:
    """A gateway, its state folder, and the command line."""

    folder: Path
    gateway: Service
    controller: Controller

    def reef(self, *arguments: str, fails: bool = False) -> str:
        environment = {**os.environ, "REEF_URL": self.gateway.url}
        done = subprocess.run([sys.executable, "-m", "reef", *arguments], capture_output=True, text=True, timeout=60, env=environment)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def beside(self, *arguments: str, fails: bool = False) -> str:
        return self.reef(*arguments, "--set", f"storage.dir={self.folder / '.reef'}", fails=fails)

    def get(self, path: str) -> Any:
        answer = self.gateway.request("GET", path)
        assert answer.status == 200, answer
        return answer.json

    def held(self, text: str) -> Candidate:
        head = self.controller.head("default")
        tree = {**self.controller.tree("default", head.step), **SETTINGS, "AGENTS.md": File(text.encode())}
        commit = self.controller.artifacts.commit(tree, parents=[head.commit], message=text)
        candidate = self.controller.open_candidate(
            scenario="default", component=Component.HARNESS, recipe="test", base_step=head.step,
            branch=mirror.candidate_branch("default", text), commit=commit, content_id=content_id(tree), summary=text, reports=(),
        )  # fmt: skip
        assert self.controller.settle(candidate, GOOD, expected_head=head.step) is None
        return candidate


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with service(tmp_path, upstream="http://127.0.0.1:1/v1") as gateway:
        controller = gateway.state.controller
        controller.ensure_scenario("default", starter=starter())
        yield Place(tmp_path, gateway, controller)


def test_a_person_promotes_and_rejects(place: Place) -> None:
    first = place.held("first")
    assert "held" in place.reef("candidates")
    assert "settings/pi.json" in place.reef("candidates", first.id)
    assert "is release 2 of default" in place.reef("promote", first.id, "--reason", "read it")
    assert place.get(f"/reef/candidates/{first.id}")["reason"] == "promoted after review: read it"
    assert "is released and cannot" in place.reef("promote", first.id, fails=True)
    open_house = Controller(place.controller.engine, place.controller.artifacts, hold=("harness",))
    head = place.controller.head("default")
    tree = {**place.controller.tree("default", 2), "AGENTS.md": File(b"second")}
    commit = place.controller.artifacts.commit(tree, parents=[head.commit], message="second")
    second = open_house.open_candidate(
        scenario="default", component=Component.HARNESS, recipe="test", base_step=2, branch="candidates/default/second", commit=commit,
        content_id=content_id(tree), summary="second", reports=(),
    )  # fmt: skip
    open_house.settle(second, GOOD, expected_head=2)
    assert "is rejected" in place.reef("reject", second.id)
    assert place.get(f"/reef/candidates/{second.id}")["state"] == "rejected"
    wrong = place.gateway.request("POST", "/reef/scenarios/other/promote", {"candidate": second.id})
    assert wrong.status == 404


def test_a_pinned_client_is_offered_what_it_is_pinned_to(place: Place) -> None:
    publish(place.controller, {**starter(), "AGENTS.md": File(b"two\n")})
    assert place.get("/reef/harness/head?client=mine")["step"] == 2
    assert "mine stays on release 1" in place.reef("release", "pin", "1", "--client", "mine")
    own = place.get(f"/reef/harness/head?client=mine&have={content_id(starter())}")
    assert (own["step"], own["update"]) == (1, False)
    assert place.get("/reef/harness?client=mine")["step"] == 1
    assert place.get("/reef/harness/head")["step"] == 2
    assert "every client of default stays" in place.reef("release", "pin", "1")
    assert place.get("/reef/harness/head?client=other")["step"] == 1
    assert place.reef("release", "pins").splitlines() == ["every client  release 1", "mine  release 1"]
    place.reef("release", "unpin")
    place.reef("release", "unpin", "--client", "mine")
    assert place.get("/reef/harness/head?client=mine")["step"] == 2
    assert "not pinned" in place.reef("release", "unpin", fails=True)
    assert "has no release 9" in place.reef("release", "pin", "9", fails=True)


def test_folders_are_released_and_the_audit_names_the_first_break(place: Place) -> None:
    harness = place.folder / "harness"
    lay_out(place.controller.artifacts, {**starter(), "AGENTS.md": File(b"By hand.\n")}, harness)
    assert "is the harness of release 2 of default" in place.beside("release", "import", str(harness))
    assert place.get("/reef/harness")["files"]["AGENTS.md"] == "By hand.\n"
    weights = place.folder / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    (weights / "model.safetensors").write_bytes(b"w" * 5000)
    said = place.beside("release", "import", str(weights), "--summary", "Small")
    assert "is the model of release 3 of default: checkpoint, 2 files" in said
    head = place.get("/reef/scenarios/default/releases")["releases"][-1]
    assert (head["summary"], head["operation"], set(head["others"])) == ("Small", "import", {"model"})
    assert "no artifact" in place.beside("release", "import", str(place.folder / "harness" / "skills"), fails=True)
    assert "all is well with 3 releases, 0 candidates, 1 large files" in place.beside("audit")
    assert "dropped the bytes of 0 candidates" in place.beside("gc")
    [large] = place.controller.artifacts.large.all()
    large.chmod(0o644)
    large.write_bytes(b"v" * 5000)
    assert "first break: default step 3: the LFS object" in place.beside("audit", "-s", "default", fails=True)
    assert "all is well" in place.beside("audit", "--sizes")
    place.controller.artifacts.set_ref(mirror.step_ref("default", 2), place.controller.release("default", 1).commit)
    assert "step-2" in place.beside("audit", "--sizes", fails=True)
    assert "no scenario" in place.beside("audit", "-s", "nope", fails=True)


def test_a_harness_comes_in_over_http(place: Place) -> None:
    files = {path: file.data.decode() for path, file in starter().items()}
    changed = {**files, "AGENTS.md": "Over HTTP.\n"}
    answer = place.gateway.request("POST", "/reef/scenarios/default/import", {"files": changed, "expected_head": 1})
    assert (answer.status, answer.json["step"], answer.json["operation"]) == (200, 2, "import")
    for body, status in (
        ({"files": changed}, 409),
        ({"files": files, "expected_head": 1}, 409),
        ({"files": {**files, "x.py": ""}}, 400),
    ):
        assert place.gateway.request("POST", "/reef/scenarios/default/import", body).status == status
    assert place.controller.verify("default") == []


def test_a_dropped_candidate_is_still_told(place: Place) -> None:
    candidate = place.held("gone")
    place.controller.reject(candidate.id)
    assert "would drop the bytes of 0 candidates" in place.beside("gc", "--dry-run")
    said = place.beside("gc", "--set", "release.grace_days=0")
    assert "dropped the bytes of 1 candidates, 1 branches" in said
    told = place.get(f"/reef/candidates/{candidate.id}")
    assert (told["diff"], told["verdict"]["decision"]) == ("", Decision.PROMOTE)
    assert "all is well" in place.beside("audit")
