from __future__ import annotations

import json

import pytest

from adapters.pi import PiAdapter
from reef import plugins
from reef.errors import InvalidTree, NotFound
from reef.harness.adapter import Binding, load_adapter
from reef.harness.tree import starter
from reef.types import File

BINDING = Binding("http://127.0.0.1:8900/v1", "m-1")


def said(*messages: dict[str, object]) -> str:
    lines = ['{"type":"session","version":3}', *('{"type":"message_end","message":' + json.dumps(message) + "}" for message in messages)]
    return "\n".join(lines) + "\n"


def assistant(text: str, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop", **more}


def test_it_is_found_by_name_and_an_unknown_one_is_told_the_known_ones() -> None:
    assert isinstance(load_adapter("pi"), PiAdapter)
    assert "pi" in plugins.names("reef.adapters")
    with pytest.raises(NotFound, match="no adapter 'emacs'") as caught:
        load_adapter("emacs")
    assert "pi" in caught.value.hint


def test_a_name_from_outside_never_imports_anything() -> None:
    with pytest.raises(NotFound):
        load_adapter("os:system")


def test_each_part_of_a_tree_gets_its_place() -> None:
    tree = {
        **starter(),
        "commands/fix.md": File(b"Fix $1."),
        "extensions/pi/guard.ts": File(b"export default () => {}"),
        "extensions/other/x.js": File(b"x"),
        "memory/a.md": File(b"Remember."),
        "settings/pi.json": File(b'{"defaultThinkingLevel": "low", "compaction": {"enabled": true}}'),
        "settings/other.json": File(b"{}"),
        "skills/verify-before-done/check.sh": File(b"#!/bin/sh\n", executable=True),
    }
    rendered = PiAdapter().render(tree, binding=BINDING)
    assert set(rendered) == {
        "AGENTS.md",
        "extensions/guard.ts",
        "models.json",
        "prompts/fix.md",
        "settings.json",
        "skills/verify-before-done/SKILL.md",
        "skills/verify-before-done/check.sh",
    }
    assert rendered["skills/verify-before-done/check.sh"].executable
    assert rendered["AGENTS.md"].data.endswith(b"Remember.\n")
    settings = json.loads(rendered["settings.json"].data)
    assert settings["defaultThinkingLevel"] == "low" and settings["compaction"] == {"enabled": True}
    assert settings["defaultProvider"] == "reef" and settings["defaultModel"] == "m-1"


def test_the_binding_names_the_key_and_never_holds_it() -> None:
    provider = json.loads(PiAdapter().render(starter(), binding=BINDING)["models.json"].data)["providers"]["reef"]
    assert provider["baseUrl"] == BINDING.base_url
    assert provider["apiKey"] == "$REEF_API_KEY"
    assert provider["headers"] == {
        "x-reef-scenario": "$REEF_SCENARIO",
        "x-reef-session": "$REEF_SESSION",
        "x-reef-release": "$REEF_RELEASE",
    }


def test_rendering_is_deterministic() -> None:
    assert PiAdapter().render(starter(), binding=BINDING) == PiAdapter().render(starter(), binding=BINDING)


def test_a_harness_may_not_choose_where_requests_go() -> None:
    tree = {**starter(), "settings/pi.json": File(b'{"defaultProvider": "anthropic"}')}
    with pytest.raises(InvalidTree, match="sets defaultProvider"):
        PiAdapter().render(tree, binding=BINDING)


@pytest.mark.parametrize("prompt", ["plain", "- dash", "--help", "@/etc/passwd"])
def test_a_prompt_arrives_as_text_whatever_it_starts_with(prompt: str) -> None:
    arguments = PiAdapter().headless(prompt)
    assert arguments[-2] == "--"
    assert arguments[-1].lstrip("\n") == prompt
    assert not arguments[-1].startswith("@")


@pytest.mark.parametrize(
    ("stdout", "stderr", "returncode", "answer", "fault"),
    [
        (said({"role": "user", "content": []}, assistant("first"), assistant("last")), "", 0, "last", None),
        ('cut":1}\n{"type":"message_end","mess\n' + said(assistant("whole")), "", 0, "whole", None),
        (said(assistant("", stopReason="error", errorMessage='503: {"message":"nope"}')), "", 0, "", "infrastructure"),
        (said(assistant("", stopReason="error", errorMessage="401: no token")), "", 0, "", "infrastructure"),
        (said(assistant("", stopReason="error", errorMessage="Connection error.: connect ECONNREFUSED")), "", 0, "", "infrastructure"),
        (said(assistant("", stopReason="error", errorMessage="400: prompt is too long")), "", 0, "", "harness"),
        (said(assistant("", stopReason="error", errorMessage="503: x"), assistant("after a retry")), "", 0, "after a retry", None),
        ("", 'Error: Failed to load extension "bad.ts"', 1, "", "harness"),
        ("", "", 137, "", "harness"),
    ],
)
def test_an_outcome_says_who_was_at_fault(stdout: str, stderr: str, returncode: int, answer: str, fault: str | None) -> None:
    outcome = PiAdapter().outcome(stdout=stdout, stderr=stderr, returncode=returncode)
    assert (outcome.answer, outcome.fault) == (answer, fault)
    assert bool(outcome.detail) == (fault is not None)
