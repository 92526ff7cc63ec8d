"""The real coding agents through a whole `reef serve`: each does a task with tools, and what it sent is what is kept."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.claude import ClaudeAdapter
from adapters.codex import CodexAdapter
from adapters.opencode import OpenCodeAdapter
from adapters.pi import PiAdapter
from reef.harness.adapter import Adapter, Binding
from reef.harness.episode import EpisodeRunner
from reef.harness.install import install
from reef.harness.sandbox import Sandbox
from reef.harness.tree import starter
from reef.types import File, Tree
from tests.support.service import Service, serving
from tests.support.tap import Sent, Tap, tapped

ROOT_TOKEN = "the-root-token"
PROMPT = "Write the date 7 March 2024 to date.txt"
RULES = b"# Rules\n\nDates must be written as YYYY-MM-DD in our files.\n"
RELEASE = 1
DIALECT = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}


class PiInAnotherDialect(PiAdapter):
    """Pi speaks three dialects; the adapter takes one, and these tests the other two as well."""

    def __init__(self, api: str) -> None:
        self._api = api

    def render(self, tree: Tree, *, binding: Binding) -> Tree:
        rendered = dict(super().render(tree, binding=binding))
        models = json.loads(rendered["models.json"].data)
        provider = models["providers"]["reef"]
        provider["api"] = self._api
        if self._api == "anthropic-messages":
            provider["baseUrl"] = binding.base_url.removesuffix("/v1")  # it adds the /v1 itself
        return {**rendered, "models.json": File(json.dumps(models).encode())}


AGENTS: dict[str, tuple[Adapter, str]] = {
    "pi-chat": (PiAdapter(), "/v1/chat/completions"),
    "pi-responses": (PiInAnotherDialect("openai-responses"), "/v1/responses"),
    "pi-messages": (PiInAnotherDialect("anthropic-messages"), "/v1/messages"),
    "codex": (CodexAdapter(), "/v1/responses"),
    "claude": (ClaudeAdapter(), "/v1/messages"),
    "opencode": (OpenCodeAdapter(), "/v1/chat/completions"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("agents")
    with serving(folder, "--upstream", "rehearsal", environment={"REEF_TOKEN": ROOT_TOKEN}) as service:
        yield service


@pytest.fixture
def tap(served: Service, tmp_path: Path) -> Iterator[Tap]:
    with tapped(served.url, unix=tmp_path / "tap.sock") as running:
        yield running


def do_the_task(adapter: Adapter, tap: Tap, *, token: str, scenario: str, session: str) -> tuple[str, str]:
    """Its last words, and what it wrote."""
    runner = EpisodeRunner(
        adapter=adapter,
        installed=install(adapter),
        sandbox=Sandbox("auto"),
        gateway_socket=tap.socket,
        gateway_url=tap.url,
        token=token,
        model="reef",
        timeout_s=60,
    )
    tree = {**starter(), "AGENTS.md": File(RULES)}
    with runner.run(tree, prompt=PROMPT, files={}, scenario=scenario, session=session, release=RELEASE) as result:
        assert (result.fault, result.returncode) == (None, 0), result.detail
        return result.answer, (result.workspace / "date.txt").read_text()


def inference(tap: Tap) -> list[Sent]:
    return [sent for sent in tap.requests if sent.method == "POST" and urllib.parse.urlsplit(sent.path).path in DIALECT]


def records(service: Service, scenario: str) -> list[Any]:
    return service.get(f"/reef/scenarios/{scenario}/records", token=ROOT_TOKEN)["records"]


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_does_its_task_and_what_it_sent_is_one_session_of_whole_records(served: Service, tap: Tap, agent: str) -> None:
    adapter, path = AGENTS[agent]
    session = f"run-of-{agent}"
    grant = {"name": agent, "scopes": ["infer"], "scenario": agent}
    token = served.post("/reef/tokens", grant, token=ROOT_TOKEN)["secret"]
    answer, written = do_the_task(adapter, tap, token=token, scenario=agent, session=session)
    assert written == "2024-03-07\n"
    assert "date.txt" in answer

    sent = inference(tap)
    kept = records(served, agent)
    assert len(sent) >= 2, "a call of a tool, and the answer after it"
    assert {urllib.parse.urlsplit(request.path).path for request in sent} == {path}
    # the same JSON, key order included; requests that overlap may be stored in another order than they were sent
    assert sorted(json.dumps(record["request"]) for record in kept) == sorted(json.dumps(request.body) for request in sent)
    assert {record["session"] for record in kept} == {session}
    assert {record["dialect"] for record in kept} == {DIALECT[path]}
    assert {(record["end"], record["status"], record["streamed"], record["error"]) for record in kept} == {("complete", 200, True, "")}
    assert {(record["release"], record["origin"]) for record in kept} == {(RELEASE, "user")}
    for record in kept:
        assert record["response"]
        assert record["usage"]
        assert served.get(f"/reef/records/{record['id']}", token=ROOT_TOKEN) == record
    stored = b"".join(file.read_bytes() for file in served.state.rglob("reef.db*"))
    assert token.encode() not in stored
