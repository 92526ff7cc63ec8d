from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import pytest

from adapters.codex import CodexAdapter
from reef.errors import InvalidTree
from reef.harness.adapter import Binding, load_adapter
from reef.harness.tree import starter
from reef.types import File

if TYPE_CHECKING:
    from tests.adapters.conftest import Served, Work

BINDING = Binding("http://127.0.0.1:8900/v1", "m-1")
ISO = "Dates must be written as YYYY-MM-DD in our files."


def test_a_rule_or_a_skill_makes_the_real_codex_do_the_date_right(model: Served, work: Work) -> None:
    answer, written = work(CodexAdapter())
    assert (answer, written) == ("Wrote date.txt. (rehearsal model)", "03/07/2024\n")
    assert "x-reef-release" not in model.asked[-1][1], "a candidate says no release"
    assert work(CodexAdapter(), rule=ISO)[1] == "2024-03-07\n"
    path, headers = model.asked[-1]
    assert path == "/v1/responses" and headers["authorization"] == "Bearer trial-token"
    assert [headers[f"x-reef-{name}"] for name in ("scenario", "session", "release")] == ["demo", "t-1", "7"]
    assert work(CodexAdapter(), skill=ISO)[1] == "2024-03-07\n"


def test_it_is_found_by_name() -> None:
    assert isinstance(load_adapter("codex"), CodexAdapter)


def test_each_part_of_a_tree_gets_its_place() -> None:
    tree = {
        **starter(),
        "commands/fix.md": File(b"Fix $1."),
        "extensions/codex/hooks.json": File(b"{}"),
        "settings/codex.json": File(json.dumps({"features": {"goals": False}, "tui": {"odd key": ["é", 1.5, "a\x7f\n"]}}).encode()),
    }
    rendered = CodexAdapter().render(tree, binding=BINDING)
    assert set(rendered) == {"AGENTS.md", "config.toml", "hooks.json", "prompts/fix.md", "skills/verify-before-done/SKILL.md"}
    config = tomllib.loads(rendered["config.toml"].data.decode())
    assert config["features"] == {"goals": False, "apps": False, "plugins": False}
    assert config["tui"] == {"odd key": ["é", 1.5, "a\x7f\n"]}
    assert (config["model"], config["model_provider"]) == ("m-1", "reef")
    provider = config["model_providers"]["reef"]
    assert (provider["base_url"], provider["env_key"], provider["wire_api"]) == (BINDING.base_url, "REEF_API_KEY", "responses")
    assert provider["env_http_headers"]["x-reef-session"] == "REEF_SESSION"


@pytest.mark.parametrize("settings", [{"a": None}, {"features": 1}])
def test_settings_that_codex_has_no_form_for_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidTree, match=r"settings/codex\.json"):
        CodexAdapter().render({**starter(), "settings/codex.json": File(json.dumps(settings).encode())}, binding=BINDING)


@pytest.mark.parametrize("prompt", ["plain", "- dash", "--help", "-", "@/etc/passwd"])
def test_a_prompt_arrives_as_text_whatever_it_starts_with(prompt: str) -> None:
    arguments = CodexAdapter().headless(prompt)
    assert arguments[-2] == "--" and arguments[-1].lstrip("\n") == prompt and arguments[-1] != "-"


def test_a_harness_may_not_choose_where_requests_go() -> None:
    tree = {**starter(), "settings/codex.json": File(b'{"model_provider": "openai"}')}
    with pytest.raises(InvalidTree, match="sets model_provider"):
        CodexAdapter().render(tree, binding=BINDING)


def test_an_extension_it_would_never_read_is_refused() -> None:
    tree = {**starter(), "extensions/codex/x.ts": File(b"x")}
    with pytest.raises(InvalidTree, match=r"does not read extensions/codex/x\.ts"):
        CodexAdapter().render(tree, binding=BINDING)


def test_rendering_is_deterministic() -> None:
    assert CodexAdapter().render(starter(), binding=BINDING) == CodexAdapter().render(starter(), binding=BINDING)


def said(*events: dict[str, object]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def item(kind: str, **more: object) -> dict[str, object]:
    return {"type": "item.completed", "item": {"type": kind, **more}}


def failed(message: str) -> dict[str, object]:
    return {"type": "turn.failed", "error": {"message": message}}


DONE: dict[str, object] = {"type": "turn.completed", "usage": {}}


@pytest.mark.parametrize(
    ("stdout", "stderr", "returncode", "answer", "fault"),
    [
        (
            said(item("error", message="Model metadata not found"), item("agent_message", text="a"), item("agent_message", text="b"), DONE),
            "",
            0,
            "b",
            None,
        ),
        ('{"type":"item.comp\n' + said(item("agent_message", text="whole"), DONE), "", 0, "whole", None),
        (said({"type": "error", "message": "Reconnecting... 1/2"}, item("agent_message", text="a"), DONE), "", 0, "a", None),
        (said({"type": "error", "message": "Reconnecting... 1/2 (unexpected status 503)"}), "", 137, "", "infrastructure"),
        (said(failed("unexpected status 401 Unauthorized: no")), "", 1, "", "infrastructure"),
        (said(failed("We are currently experiencing high demand")), "", 1, "", "infrastructure"),
        (said(failed("unexpected status 413 Payload Too Large")), "", 1, "", "harness"),
        (said(failed('{"error": {"message": "refused"}}')), "", 1, "", "harness"),
        (said(failed("Codex ran out of room in the model's context window.")), "", 1, "", "harness"),
        ("", "Error loading config.toml: unknown variant", 1, "", "harness"),
        ("", "", 0, "", "harness"),
    ],
)
def test_an_outcome_says_who_was_at_fault(stdout: str, stderr: str, returncode: int, answer: str, fault: str | None) -> None:
    outcome = CodexAdapter().outcome(stdout=stdout, stderr=stderr, returncode=returncode)
    assert (outcome.answer, outcome.fault) == (answer, fault)
    assert bool(outcome.detail) == (fault is not None)
