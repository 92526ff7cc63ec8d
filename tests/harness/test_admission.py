"""Admission lets plain guidance through and stops secrets, endpoints, code and leaked answers, with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.pi import PiAdapter
from reef.errors import InvalidTree
from reef.harness.admission import admit
from reef.harness.tree import starter
from reef.types import File, Tree

BASE = starter()


def changed(base: Tree = BASE, /, **files: str | None) -> Tree:
    """The base with files replaced, added or (None) removed; `__` is a slash and `_dot_` a dot."""
    tree = dict(base)
    for name, content in files.items():
        path = name.replace("__", "/").replace("_dot_", ".")
        if content is None:
            del tree[path]
        else:
            tree[path] = File(content.encode())
    return tree


def rules(text: str) -> Tree:
    return changed(AGENTS_dot_md=f"# How to work\n\n- {text}\n")


def refused(tree: Tree, *, base: Tree = BASE, forbidden: tuple[str, ...] = ()) -> str:
    with pytest.raises(InvalidTree) as caught:
        admit(tree, adapter=PiAdapter(), base=base, forbidden=forbidden)
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "Dates are written as YYYY-MM-DD.",
        "The API is described at https://example.org/docs; read it first.",
        "Pass the API key by the environment variable API_KEY, never on the command line.",
        "Send `Authorization: Bearer $TOKEN`.",
        "Use sk- as the prefix of skill names.",
        "The endpoint: ask the team which one.",
    ],
)
def test_plain_guidance_is_admitted(text: str) -> None:
    admit(rules(text), adapter=PiAdapter(), base=BASE, forbidden=("date-spring", "Write the date 14 April 2021 to date.txt", "2021-04-14"))


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijklmnop1234",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "github_pat_11ABCDEFG0abcdefghijkl",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA-1234567890abcdefghijklmnopqrstu",
        "xoxb-123456789012-abcdefghij",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        "hf_abcdefghijklmnopqrstuvwxyz0123456789",
        "Bearer abcdefghijklmnop0123456789",
        "https://user:hunter2@example.org/",
    ],
)
def test_secrets_are_refused_without_being_repeated(secret: str) -> None:
    message = refused(rules(f"Use {secret} to log in."))
    assert "AGENTS.md:3" in message
    assert secret not in message


def test_a_tree_that_is_not_valid_is_refused() -> None:
    assert "front matter" in refused(changed(skills__x__SKILL_dot_md="no head"))
    assert "'..'" in refused({**BASE, "skills/../../x": File(b"x")})


def test_no_change_is_refused() -> None:
    assert refused(dict(BASE)) == "no change"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"proxy": "http://evil.example"}, "address"),
        ({"nested": {"baseUrl": "evil.example"}}, "nested.baseUrl"),
        ({"apiKey": "x"}, "apiKey"),
        ({"list": [{"api_key": 1}]}, "list.0.api_key"),
    ],
)
def test_endpoints_and_keys_in_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    assert says in refused(changed(settings__pi_dot_json=json.dumps(settings)))


def test_endpoints_anywhere_else_are_refused() -> None:
    assert "endpoint" in refused(rules("baseUrl: http://evil.example/v1"))
    assert "endpoint" in refused(
        changed(skills__x__SKILL_dot_md="---\nname: x\ndescription: d\n---\n", skills__x__run_dot_py="base_url = 'evil'")
    )
    assert "address" in refused(changed(harness_dot_yaml="format: 1\nname: x\ndescription: see https://evil.example\n"))


@pytest.mark.parametrize(
    "settings", [{"shellPath": "/tmp/x"}, {"theme": "dark"}, {"hooks": {"start": True}}, {"defaultProjectTrust": True}]
)
def test_settings_that_could_run_code_wait_for_a_person(settings: dict[str, Any]) -> None:
    assert "waits for a person" in refused(changed(settings__pi_dot_json=json.dumps(settings)))


def test_numbers_and_plain_switches_in_settings_are_admitted_and_so_is_what_was_there() -> None:
    base = changed(settings__pi_dot_json='{"shellPath": "/bin/bash", "hideThinkingBlock": false}')
    tree = changed(base, settings__pi_dot_json='{"shellPath": "/bin/bash", "hideThinkingBlock": true, "retries": 2}')
    admit(tree, adapter=PiAdapter(), base=base)
    assert "waits for a person" in refused(changed(base, settings__pi_dot_json="{}"), base=base)


def test_code_waits_for_a_person() -> None:
    base = changed(extensions__pi__a_dot_ts="export default () => {}\n")
    assert "waits for a person" in refused(base)
    assert "waits for a person" in refused(changed(base, extensions__pi__a_dot_ts="export default 1\n"), base=base)
    assert "waits for a person" in refused(dict(BASE), base=base)
    assert "waits for a person" in refused({**BASE, "memory/run.sh": File(b"#!/bin/sh\n", executable=True)})


TASKS = ("date-spring", "Write the date 14 April 2021 to date.txt", "2021-04-14", "42", "1234")


@pytest.mark.parametrize(
    ("text", "leaked"),
    [
        ("For 14 April 2021 write 2021-04-14.", "2021-04-14"),
        ("When asked to `write the DATE 14 April\n  2021 to date.txt`, do so.", "Write the date 14 April 2021"),
        ("The task date-spring wants ISO.", "date-spring"),
        ("The sum is 1234.", "1234"),
    ],
)
def test_what_belongs_to_the_evaluation_set_is_refused(text: str, leaked: str) -> None:
    assert leaked in refused(rules(text), forbidden=TASKS)


@pytest.mark.parametrize("text", ["The answer to everything is 42.", "Write 12345 and 2021-04-145."])
def test_short_answers_and_other_words_are_no_leak(text: str) -> None:
    admit(rules(text), adapter=PiAdapter(), base=BASE, forbidden=TASKS)


def test_a_leak_in_a_path_counts_and_one_that_was_always_there_does_not() -> None:
    skill = "---\nname: date-spring\ndescription: d\n---\n"
    base = {**BASE, "skills/date-spring/SKILL.md": File(skill.encode())}
    assert "date-spring" in refused(base, forbidden=TASKS)
    admit({**base, "AGENTS.md": File(b"- x\n")}, adapter=PiAdapter(), base=base, forbidden=TASKS)


def test_removing_a_file_is_admitted() -> None:
    tree = dict(BASE)
    del tree["skills/verify-before-done/SKILL.md"]
    admit(tree, adapter=PiAdapter(), base=BASE)


@given(st.text(max_size=200))
def test_any_rules_are_admitted_or_refused_with_a_reason(text: str) -> None:
    try:
        admit(rules(text), adapter=PiAdapter(), base=BASE, forbidden=TASKS)
    except InvalidTree as error:
        assert error.message
        assert error.hint
