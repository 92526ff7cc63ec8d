"""Harnesses over HTTP, against the whole gateway with its real database and repository."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from reef_client import ReefClient

from reef.artifacts.tree import content_id
from reef.config import load
from reef.gateway.app import create_app
from reef.gateway.auth import Auth
from reef.gateway.state import GatewayState
from reef.harness.tree import starter
from reef.types import CandidateState, Component, Decision, File, Verdict


@dataclass
class Answer:
    status_code: int
    content_type: str
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Served:
    """A gateway that runs in a thread of this process."""

    url: str
    state: GatewayState

    def get(self, path: str, **headers: str) -> Answer:
        request = urllib.request.Request(self.url + path, headers={"authorization": "Bearer t", **headers})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Answer(answer.status, answer.headers["content-type"], answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers["content-type"], error.read().decode())

    def publish(self, **files: str) -> None:
        """Release the head with other files, as the learner does."""
        self.get("/reef/harness/head")  # answers once the scenario is there
        controller = self.state.controller
        head = controller.head("default")
        tree = {**controller.tree("default", head.step), **{path: File(content.encode()) for path, content in files.items()}}
        commit = self.state.artifacts.commit(tree, parents=[head.commit], message="Change", trailers={})
        candidate = controller.open_candidate(
            scenario="default",
            component=Component.HARNESS,
            recipe="cordis",
            base_step=head.step,
            branch=f"candidates/{head.step + 1}",
            commit=commit,
            content_id=content_id(tree),
            summary=f"Change number {head.step}",
            reports=(),
        )
        controller.mark(candidate.id, CandidateState.JUDGING)
        verdict = Verdict(Decision.PROMOTE, "better", 0.5, 0.1, 0.9, 10, 6, 1, 40.0, 0.025, 3.0)
        controller.settle(candidate, verdict, expected_head=head.step, consumed=())


@contextmanager
def serving(folder: Path, **scenarios: Any) -> Iterator[Served]:
    config = load(storage={"dir": str(folder / "state")}, scenarios=scenarios, upstream={"url": "http://127.0.0.1:9/v1", "model": "m-1"})
    state = GatewayState.build(config, auth=Auth(token="t", trial="trial"))
    server = uvicorn.Server(uvicorn.Config(create_app(state), host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline and thread.is_alive(), "the gateway did not start"
        time.sleep(0.01)
    try:
        yield Served(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", state)
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as found:
        yield found


def test_a_release_is_given_with_its_files_and_digests(served: Served) -> None:
    body = served.get("/reef/harness").json()
    tree = starter()
    assert (body["scenario"], body["step"], body["artifact_version"], body["content_id"]) == ("default", 1, "1", content_id(tree))
    assert body["files"] == {path: file.data.decode() for path, file in tree.items()}
    assert body["digests"] == {path: hashlib.sha256(file.data).hexdigest() for path, file in tree.items()}
    assert "launch" not in body


def test_for_an_adapter_its_own_files_come_with_the_launch_and_without_a_key(served: Served) -> None:
    body = served.get("/reef/harness?adapter=pi").json()
    assert {"AGENTS.md", "models.json", "settings.json"} <= set(body["files"])
    models = json.loads(body["files"]["models.json"])["providers"]["reef"]
    assert models["baseUrl"] == f"{served.url}/v1" and models["models"][0]["id"] == "m-1"
    assert body["launch"]["env"]["PI_CODING_AGENT_DIR"] == "{config}"
    assert body["adapter"] == {"name": "pi", "version": "1.6.0"}


def test_an_older_release_is_found_by_step_and_by_content_id(served: Served) -> None:
    first = served.get("/reef/harness").json()
    served.publish(**{"AGENTS.md": "New rules.\n"})
    assert served.get("/reef/harness").json()["files"]["AGENTS.md"] == "New rules.\n"
    for version in ("1", first["content_id"]):
        assert served.get(f"/reef/harness?version={version}").json()["files"] == first["files"]
    for version in ("7", "nonsense", "999999999999999999999999"):
        missing = served.get(f"/reef/harness?version={version}")
        assert missing.status_code == 404 and missing.json()["error"]["hint"]


def test_the_public_client_pulls_and_lists(served: Served, tmp_path: Path) -> None:
    served.publish(**{"AGENTS.md": "New rules.\n"})
    client = ReefClient(served.url, token="t")
    assert client.harness_pull("default", tmp_path / "pulled") == "2"
    assert (tmp_path / "pulled" / "AGENTS.md").read_text() == "New rules.\n"
    assert client.harness_pull("default", tmp_path / "pulled", version="1") == "1"
    versions = client.harness_versions("default")
    assert [row["artifact_version"] for row in versions] == ["1", "2"]
    assert versions[1]["metrics"]["effect"] == 0.5 and versions[1]["summary"] == "Change number 1"


def test_the_head_tells_whether_there_is_news(served: Served) -> None:
    head = served.get("/reef/harness/head").json()
    assert (head["step"], head["update"]) == (1, True)
    assert served.get(f"/reef/harness/head?adapter=pi&have={head['content_id']}").json()["update"] is False
    served.publish(**{"AGENTS.md": "New rules.\n"})
    news = served.get(f"/reef/harness/head?adapter=pi&have={head['content_id']}").json()
    assert (news["step"], news["update"], news["summary"]) == (2, True, "Change number 1")


def test_the_diff_is_text(served: Served) -> None:
    served.publish(**{"AGENTS.md": "New rules.\n"})
    for query in ("?from=1&to=2", "", "?from=1"):
        answer = served.get(f"/reef/harness/diff{query}")
        assert answer.content_type.startswith("text/plain") and "+New rules." in answer.text
    assert served.get("/reef/harness/diff?from=1&to=9").status_code == 404


def test_releases_and_adapters_are_listed(served: Served) -> None:
    chain = served.get("/reef/harness/releases").json()
    assert chain["head"] == 1 and chain["releases"][0]["operation"] == "import"
    adapters = served.get("/reef/harness/adapters").json()["adapters"]
    pi = next(found for found in adapters if found["name"] == "pi")
    assert pi["version"] == "1.6.0" and f"{served.url}/reef/harness/install?adapter=pi" in pi["install"]


def test_the_script_is_for_the_address_and_the_scenario_it_was_asked_with(served: Served) -> None:
    answer = served.get("/reef/harness/install?adapter=pi&scenario=my-work", host="reef.example.com:8900")
    assert answer.status_code == 200 and answer.text.endswith('\nmain "$@"\n')
    assert '"url": "http://reef.example.com:8900"' in answer.text and '"scenario": "my-work"' in answer.text
    assert "Bearer t" not in answer.text
    assert subprocess.run(["bash", "-n"], input=answer.text, text=True, capture_output=True, check=False, timeout=30).returncode == 0


@pytest.mark.parametrize(
    "path", ["/reef/harness/install?adapter=emacs", "/reef/harness?adapter=emacs", "/reef/harness/head?adapter=os:system"]
)
def test_an_unknown_adapter_is_told_the_known_ones(served: Served, path: str) -> None:
    answer = served.get(path)
    assert answer.status_code == 404 and "pi" in answer.json()["error"]["hint"]


@pytest.mark.parametrize("nasty", ["$(touch pwned)", "a;b", "../x", "'", "a\nb"])
def test_nothing_nasty_gets_into_a_script(served: Served, nasty: str) -> None:
    query = urllib.parse.urlencode({"adapter": "pi", "scenario": nasty})
    assert served.get(f"/reef/harness/install?{query}").status_code == 400
    if "\n" not in nasty:
        assert served.get("/reef/harness/install?adapter=pi", host=nasty).status_code == 400
    assert served.get(f"/reef/harness/install?{urllib.parse.urlencode({'adapter': nasty})}").status_code == 404


def test_a_scenario_that_may_not_be_created_is_unknown(tmp_path: Path) -> None:
    with serving(tmp_path, implicit=False, names=("only",)) as served:
        assert served.get("/reef/harness").json()["scenario"] == "only"
        refused = served.get("/reef/harness", **{"x-reef-scenario": "other"})
        assert refused.status_code == 404 and refused.json()["error"]["hint"]


def test_only_the_right_token_gets_a_harness(served: Served) -> None:
    served.get("/reef/harness/head")
    paths = ["", "/head", "/versions", "/releases", "/adapters", "/install?adapter=pi", "/diff"]
    for path in paths:
        bare = served.get(f"/reef/harness{path}", authorization="")
        assert bare.status_code == 401 and bare.json()["error"]["hint"]
        trial = served.get(f"/reef/harness{path}", authorization="Bearer trial")
        assert trial.status_code == 403
    assert served.state.controller.scenarios() == {"default": 1}, "a refused caller creates no scenario"
