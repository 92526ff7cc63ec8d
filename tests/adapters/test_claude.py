from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from adapters.claude import ClaudeAdapter
from reef.errors import InvalidTree
from reef.harness.adapter import Binding, load_adapter
from reef.harness.tree import starter
from reef.types import File

if TYPE_CHECKING:
    from tests.adapters.conftest import Served, Work

BINDING = Binding("http://127.0.0.1:8900/v1", "m-1")
ISO = "Dates must be written as YYYY-MM-DD in our files."


def test_a_rule_or_a_skill_makes_the_real_claude_do_the_date_right(model: Served, work: Work) -> None:
    answer, written = work(ClaudeAdapter())
    assert (answer, written) == ("Wrote date.txt. (rehearsal model)", "03/07/2024\n")
    assert "x-reef-release" not in model.asked[-1][1], "a candidate says no release"
    assert work(ClaudeAdapter(), rule=ISO)[1] == "2024-03-07\n"
    path, headers = model.asked[-1]
    assert path == "/v1/messages" and headers["authorization"] == "Bearer trial-token"
    assert [headers[f"x-reef-{name}"] for name in ("scenario", "session", "release")] == ["demo", "t-1", "7"]
    assert work(ClaudeAdapter(), skill=ISO)[1] == "2024-03-07\n"


def test_it_is_found_by_name() -> None:
    assert isinstance(load_adapter("claude"), ClaudeAdapter)


def test_each_part_of_a_tree_gets_its_place() -> None:
    tree = {
        **starter(),
        "commands/fix.md": File(b"Fix $1."),
        "extensions/claude/agents/reviewer.md": File(b"---\nname: reviewer\n---\n"),
        "memory/a.md": File(b"Remember."),
        "settings/claude.json": File(b'{"permissions": {"deny": ["WebFetch"]}, "env": {"A": "1"}}'),
    }
    rendered = ClaudeAdapter().render(tree, binding=BINDING)
    names = {"CLAUDE.md", "agents/reviewer.md", "commands/fix.md", "settings.json", "skills/verify-before-done/SKILL.md"}
    assert set(rendered) == names
    assert rendered["CLAUDE.md"].data.endswith(b"Remember.\n")
    settings = json.loads(rendered["settings.json"].data)
    assert settings["permissions"] == {"deny": ["WebFetch"]}
    assert settings["env"]["A"] == "1" and settings["env"]["ANTHROPIC_MODEL"] == "m-1"
    assert settings["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8900"


def test_key_and_headers_are_in_the_environment_and_no_other_key_is() -> None:
    env = ClaudeAdapter().launch().env
    assert (env["ANTHROPIC_AUTH_TOKEN"], env["ANTHROPIC_CUSTOM_HEADERS"], env["ANTHROPIC_API_KEY"]) == ("{key}", "{headers}", "")


@pytest.mark.parametrize("prompt", ["plain", "- dash", "--help", "/fix it", "@/etc/passwd"])
def test_a_prompt_arrives_as_text_whatever_it_starts_with(prompt: str) -> None:
    arguments = ClaudeAdapter().headless(prompt)
    assert arguments[-2] == "--" and arguments[-1].lstrip("\n") == prompt and not arguments[-1].startswith("/")


def test_a_harness_may_not_choose_where_requests_go() -> None:
    tree = {**starter(), "settings/claude.json": File(b'{"env": {"ANTHROPIC_BASE_URL": "http://x"}}')}
    with pytest.raises(InvalidTree, match=r"sets env\.ANTHROPIC_BASE_URL"):
        ClaudeAdapter().render(tree, binding=BINDING)


def test_an_extension_it_would_never_read_is_refused() -> None:
    tree = {**starter(), "extensions/claude/x.ts": File(b"x")}
    with pytest.raises(InvalidTree, match=r"does not read extensions/claude/x\.ts"):
        ClaudeAdapter().render(tree, binding=BINDING)


def test_rendering_is_deterministic() -> None:
    assert ClaudeAdapter().render(starter(), binding=BINDING) == ClaudeAdapter().render(starter(), binding=BINDING)


def said(*events: dict[str, object]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def assistant(text: str, **more: object) -> dict[str, object]:
    return {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}, **more}


def result(text: str, **more: object) -> dict[str, object]:
    return {"type": "result", "is_error": False, "result": text, "terminal_reason": "completed", **more}


API_ERROR = {"is_error": True, "terminal_reason": "api_error"}
RETRY: dict[str, object] = {"type": "system", "subtype": "api_retry", "error_status": 503, "error": "server_error"}


@pytest.mark.parametrize(
    ("stdout", "stderr", "returncode", "answer", "fault"),
    [
        (said(assistant("first"), RETRY, assistant("last"), result("last")), "[warning]", 0, "last", None),
        ('{"type":"assis\n' + said(result("whole")), "", 0, "whole", None),
        (said(result("API Error: 500 no", **API_ERROR)), "", 1, "", "infrastructure"),
        (said(result("Failed to authenticate. API Error: 401 no", **API_ERROR)), "", 1, "", "infrastructure"),
        (said(assistant("a"), result("API Error: 400 no", **API_ERROR)), "", 1, "a", "harness"),
        (said(result("Prompt is too long", **API_ERROR)), "", 1, "", "harness"),
        (said(assistant("a"), RETRY), "", 137, "a", "infrastructure"),
        (said(assistant("a")), "", 137, "a", "harness"),
        ("", "Error: settings.json is not valid", 1, "", "harness"),
        ("", "", 1, "", "harness"),
    ],
)
def test_an_outcome_says_who_was_at_fault(stdout: str, stderr: str, returncode: int, answer: str, fault: str | None) -> None:
    outcome = ClaudeAdapter().outcome(stdout=stdout, stderr=stderr, returncode=returncode)
    assert (outcome.answer, outcome.fault) == (answer, fault)
    assert bool(outcome.detail) == (fault is not None)
