"""A canary of a harness with the real service, its learner killed midway, and the wrapper as a user has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapters.pi import PiAdapter
from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import content_id
from reef.experience.database import connect
from reef.releases import mirror, rollout
from reef.releases.controller import Controller
from reef.releases.rollout import Mode, Plan
from reef.types import Candidate, CandidateState, Component, File
from tests.support.chain import GOOD
from tests.support.service import Service, serving, wait_for

WRAPPER = Path(__file__).parents[2] / "harness_templates" / "client" / "reef_wrapper.py"
AGENT = f"""#!{sys.executable}
import json, os, pathlib, urllib.request
rules = pathlib.Path(os.environ["PI_CODING_AGENT_DIR"], "AGENTS.md").read_text()
print("release=" + os.environ["REEF_RELEASE"], "new" if "Be better." in rules else "old")
headers = {{f"x-reef-{{name}}": os.environ[f"REEF_{{name.upper()}}"] for name in ("scenario", "session", "release")}}
body = json.dumps({{"model": "reef", "messages": [{{"role": "user", "content": "hello"}}]}}).encode()
request = urllib.request.Request(os.environ["GATEWAY"] + "/v1/chat/completions", body, {{**headers, "content-type": "application/json"}})
urllib.request.urlopen(request, timeout=30).read()
"""


@dataclass
class Installation:
    """An installed wrapper with the name of our choice."""

    home: Path
    url: str

    @classmethod
    def made(cls, home: Path, url: str, *, client: str) -> Installation:
        program = home / "bin" / "reef-pi"
        program.parent.mkdir(parents=True)
        shutil.copy(WRAPPER, program)
        launch = PiAdapter().launch()
        spec = {"args": (), "env": dict(launch.env), "keep": launch.keep, "not_runs": launch.not_runs}
        version = PiAdapter().install.version
        config = {"url": url, "adapter": "pi", "scenario": "default", "version": version, "command": "pi", "launch": spec}
        program.with_name("reef-pi.json").write_text(json.dumps(config))
        (home / "client.json").write_text(json.dumps({"id": client}))
        agent = home / "pi" / f"cli-{version}" / "node_modules" / ".bin" / "pi"
        agent.parent.mkdir(parents=True)
        agent.write_text(AGENT)
        agent.chmod(0o755)
        return cls(home, url)

    def run(self, *arguments: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "REEF_UPDATE": "auto", "GATEWAY": self.url}
        program = [sys.executable, str(self.home / "bin" / "reef-pi"), *arguments]
        done = subprocess.run(program, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def current(self) -> dict[str, object]:
        return json.loads((self.home / "pi" / "scenario-default" / "current.json").read_text())


@dataclass
class House:
    """A service with a candidate on canary, and two installations: one that was drawn, and one that was not."""

    service: Service
    controller: Controller
    candidate: Candidate
    drawn: Installation
    other: Installation

    def state(self) -> CandidateState:
        return self.controller.candidate(self.candidate.id).state

    def report(self, number: int, *, score: float, release: str) -> None:
        """A session of somebody else, asked and reported on over HTTP."""
        path = f"/s/default/run-{release}-{number}/v1/chat/completions"
        self.service.post(path, {"model": "reef", "messages": [{"role": "user", "content": "hello"}]}, headers={"x-reef-release": release})
        self.service.post("/reef/report", {"session": f"run-{release}-{number}", "score": score})


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with serving(tmp_path, "--upstream", "rehearsal") as service:
        wait_for(lambda: service.get("/reef/scenarios")["scenarios"], "the scenario to exist")
        engine = connect(f"sqlite:///{service.state / 'reef.db'}")
        controller = Controller(engine, ArtifactRepository(service.state / "artifacts.git"), plan=Plan(mode=Mode.CANARY, share=0.5))
        head = controller.head("default")
        tree = dict(controller.tree("default", 1))
        tree["AGENTS.md"] = File(tree["AGENTS.md"].data + b"\nBe better.\n")
        commit = controller.artifacts.commit(tree, parents=[head.commit], message="better")
        candidate = controller.open_candidate(
            scenario="default", component=Component.HARNESS, recipe="test", base_step=1, branch=mirror.candidate_branch("default", "x"),
            commit=commit, content_id=content_id(tree), summary="Be better", reports=(),
        )  # fmt: skip
        names = [f"client-{number}" for number in range(40)]
        drawn = next(name for name in names if rollout.drawn(candidate, name, share=0.5))
        other = next(name for name in names if not rollout.drawn(candidate, name, share=0.5))
        both = [Installation.made(tmp_path / name, service.url, client=name) for name in (drawn, other)]
        assert [one.run() for one in both] == ["release=1 old\n", "release=1 old\n"]
        assert controller.settle(candidate, GOOD, expected_head=1) is None
        try:
            yield House(service, controller, candidate, *both)
        finally:
            engine.dispose()


def test_harm_is_rolled_back_and_who_ran_it_goes_back_to_the_head(house: House) -> None:
    service, name = house.service, house.candidate.id
    assert f"release={name} new" in house.drawn.run("-p", "x")
    assert house.other.run("-p", "x") == "release=1 old\n"
    assert house.drawn.current()["candidate"] == name
    assert name in house.drawn.run("status")
    kept = service.get(f"/reef/scenarios/default/records?candidate={name}")["records"]
    assert [(record["candidate"], record["release"]) for record in kept] == [(name, None)]
    house.drawn.run("report", "--score", "0")
    house.other.run("report", "--score", "1")
    for number in range(4):
        house.report(number, score=1.0, release="1")
        house.report(number, score=0.0, release=name)
    shown = service.get(f"/reef/candidates/{name}")["rollout"]
    assert (shown["mode"], shown["finding"]["decision"], shown["finding"]["pairs"]) == ("canary", "inconclusive", 5)
    service.kill("learner")
    for number in range(4, 9):
        house.report(number, score=1.0, release="1")
        house.report(number, score=0.0, release=name)
    wait_for(lambda: house.state() is CandidateState.REJECTED, "the canary to be rolled back")
    assert house.controller.head("default").step == 1
    said = house.drawn.run("-p", "x")
    assert "now at release 1" in said
    assert "release=1 old" in said
    printed = subprocess.run(
        [sys.executable, "-m", "reef", "candidates", name, "--url", service.url], capture_output=True, text=True, timeout=30
    )
    assert "Worse than the head" in printed.stdout


def test_what_does_as_well_is_released_and_who_ran_it_has_it_already(house: House) -> None:
    service, name = house.service, house.candidate.id
    house.drawn.run("-p", "x")
    folder = house.drawn.current()["folder"]
    for number in range(80):
        if house.state() is not CandidateState.CANARY:
            break
        house.report(number, score=1.0, release="1")
        house.report(number, score=1.0, release=name)
    wait_for(lambda: house.state() is CandidateState.RELEASED, "the canary to be released")
    assert service.get("/reef/harness/head")["step"] == 2
    assert house.drawn.run("-p", "x") == "release=2 new\n"
    assert (house.drawn.current()["folder"], house.drawn.current()["candidate"]) == (folder, None), "nothing was fetched again"
    assert "release=2 new" in house.other.run("-p", "x")
    assert house.controller.verify("default") == []
