from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from adapters.opencode import OpenCodeAdapter
from reef.errors import InvalidTree
from reef.harness.adapter import Binding, load_adapter
from reef.harness.tree import starter
from reef.types import File

if TYPE_CHECKING:
    from tests.adapters.conftest import Served, Work

BINDING = Binding("http://127.0.0.1:8900/v1", "m-1")
ISO = "Dates must be written as YYYY-MM-DD in our files."


def test_a_rule_or_a_skill_makes_the_real_opencode_do_the_date_right(model: Served, work: Work) -> None:
    answer, written = work(OpenCodeAdapter())
    assert (answer, written) == ("Wrote date.txt. (rehearsal model)", "03/07/2024\n")
    assert "x-reef-release" not in model.asked[-1][1], "a candidate says no release"
    assert work(OpenCodeAdapter(), rule=ISO)[1] == "2024-03-07\n"
    path, headers = model.asked[-1]
    assert path == "/v1/chat/completions" and headers["authorization"] == "Bearer trial-token"
    assert [headers[f"x-reef-{name}"] for name in ("scenario", "session", "release")] == ["demo", "t-1", "7"]
    assert work(OpenCodeAdapter(), skill=ISO)[1] == "2024-03-07\n"


def test_it_is_found_by_name() -> None:
    assert isinstance(load_adapter("opencode"), OpenCodeAdapter)


def test_each_part_of_a_tree_gets_its_place() -> None:
    tree = {
        **starter(),
        "commands/fix.md": File(b"Fix $1."),
        "extensions/opencode/plugin/guard.js": File(b"export default async () => ({})"),
        "extensions/other/x.js": File(b"x"),
        "settings/opencode.json": File(b'{"permission": {"webfetch": "deny"}}'),
    }
    rendered = OpenCodeAdapter().render(tree, binding=BINDING)
    names = {"AGENTS.md", "command/fix.md", "opencode.json", "plugin/guard.js", "skills/verify-before-done/SKILL.md"}
    assert set(rendered) == names
    config = json.loads(rendered["opencode.json"].data)
    assert config["permission"] == {"webfetch": "deny"} and config["model"] == "reef/m-1" and config["autoupdate"] is False
    options = config["provider"]["reef"]["options"]
    assert (options["baseURL"], options["apiKey"]) == (BINDING.base_url, "{env:REEF_API_KEY}")
    assert options["headers"]["x-reef-session"] == "{env:REEF_SESSION}"


@pytest.mark.parametrize("prompt", ["plain", "- dash  and 7 1.50", "--help", '"quoted"', "say 'a b'", "@/etc/passwd\n/fix"])
def test_a_prompt_is_given_word_by_word_and_one_pair_of_quotes_is_lost_on_the_way(prompt: str) -> None:
    words = [argument.removeprefix("--message=") for argument in OpenCodeAdapter().headless(prompt) if argument.startswith("--message=")]
    taken = [word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word for word in words]
    assert " ".join(taken) == prompt


def test_a_harness_may_not_choose_where_requests_go() -> None:
    tree = {**starter(), "settings/opencode.json": File(b'{"model": "anthropic/x"}')}
    with pytest.raises(InvalidTree, match="sets model"):
        OpenCodeAdapter().render(tree, binding=BINDING)


def test_an_extension_it_would_never_read_is_refused() -> None:
    tree = {**starter(), "extensions/opencode/x.ts": File(b"x")}
    with pytest.raises(InvalidTree, match=r"does not read extensions/opencode/x\.ts"):
        OpenCodeAdapter().render(tree, binding=BINDING)


def test_rendering_is_deterministic() -> None:
    assert OpenCodeAdapter().render(starter(), binding=BINDING) == OpenCodeAdapter().render(starter(), binding=BINDING)


def said(*events: dict[str, object]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def text(words: str) -> dict[str, object]:
    return {"type": "text", "part": {"text": words}}


def error(status: int | None, name: str = "APIError") -> dict[str, object]:
    return {"type": "error", "error": {"name": name, "data": {"message": "no", "statusCode": status}}}


@pytest.mark.parametrize(
    ("stdout", "stderr", "returncode", "answer", "fault"),
    [
        (said(text("first"), text("last")), "", 0, "last", None),
        ('{"type":"text","pa\n' + said(text("whole")), "", 0, "whole", None),
        (said(error(401)), "", 1, "", "infrastructure"),
        (said(error(None)), "", 1, "", "infrastructure"),
        (said(text("a"), error(400)), "", 1, "a", "harness"),
        (said(error(None, "UnknownError")), "", 1, "", "harness"),
        ("", 'level=ERROR message="stream error" error.error="AI_APICallError: no"', 137, "", "infrastructure"),
        ("", "Error: cannot load plugin/bad.js", 1, "", "harness"),
        ("", "", 0, "", "harness"),
    ],
)
def test_an_outcome_says_who_was_at_fault(stdout: str, stderr: str, returncode: int, answer: str, fault: str | None) -> None:
    outcome = OpenCodeAdapter().outcome(stdout=stdout, stderr=stderr, returncode=returncode)
    assert (outcome.answer, outcome.fault) == (answer, fault)
    assert bool(outcome.detail) == (fault is not None)
