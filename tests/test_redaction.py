"""Secrets are taken out of JSON text, which stays valid and otherwise the same."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef import redaction

KEY = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEow/IBAA+KCAQEA\nabc==\n-----END RSA PRIVATE KEY-----"
SECRETS = {
    "sk-proj-abcdefghijklmnop1234": "api-key",
    "sk-ant-api03-abcdefghijklmnop_1234-AA": "api-key",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789": "github-token",
    "github_pat_11ABCDEFG0abcdefghijkl": "github-token",
    "AKIAIOSFODNN7EXAMPLE": "aws-key",
    "AIzaSyA-1234567890abcdefghijklmnopqrstu": "google-key",
    "xoxb-123456789012-abcdefghij": "slack-token",
    "glpat-abcdefghijklmnopqrst": "gitlab-token",
    "hf_abcdefghijklmnopqrstuvwxyz0123456789": "huggingface-token",
    "npm_abcdefghijklmnopqrstuvwxyz0123456789": "npm-token",
    "sk_live_abcdefghijklmnopqrstuvwx": "stripe-key",
    "reef_0123456789ab_abcdefghijklmnopqrstuvwxyz": "reef-token",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U": "jwt",
    KEY: "private-key",
}


@pytest.mark.parametrize(("secret", "kind"), SECRETS.items(), ids=list(SECRETS.values()))
@pytest.mark.parametrize(
    "around", ["{}", "a {} b", "line\n{}\nline", "\t{}", "é{}", '"{}"', "x={};", "KEY='{}'", "C:\\{}\\", "a\\\\n{}"], ids=repr
)
def test_a_secret_is_replaced_wherever_it_stands(secret: str, kind: str, around: str) -> None:
    before, after = around.split("{}")
    for nested in (False, True):  # the arguments of a tool call are JSON inside JSON
        text = json.dumps({"x": before + secret + after}) if nested else before + secret + after
        redacted = json.loads(redaction.redact(orjson.dumps({"content": text, "n": 1})))
        assert redacted["n"] == 1
        inner = json.loads(redacted["content"])["x"] if nested else redacted["content"]
        assert inner == f"{before}[redacted:{kind}]{after}"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("postgres://user:hunter2@db/x", "postgres://[redacted:password]@db/x"),
        ("Authorization: Bearer abcdefghijklmnop0123456789==", "Authorization: Bearer [redacted:bearer-token]"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\nabc", "[redacted:private-key]"),
        ("two: sk-aaaaaaaaaaaaaaaa1 sk-bbbbbbbbbbbbbbbb2", "two: [redacted:api-key] [redacted:api-key]"),
    ],
)
def test_what_tells_what_a_secret_is_stays(text: str, redacted: str) -> None:
    once = redaction.redact(orjson.dumps(text))
    assert json.loads(once) == redacted
    assert redaction.redact(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "a task-runner-with-a-long-name and disk-0123456789abcdef",
        "see https://example.org/docs:8080/x or mail me@example.org",
        "Send `Authorization: Bearer $TOKEN`; sk- is a prefix",
        "call_abcdefghijklmnopqrstuvwxyz0123456789",
        "the reef_token is in reef_0123",
    ],
)
def test_plain_text_is_left_alone(text: str) -> None:
    assert redaction.redact(orjson.dumps(text)) == orjson.dumps(text)


def test_a_password_does_not_reach_over_the_end_of_a_string() -> None:
    body = orjson.dumps({"url": "http://a", "port": "x:y@z", "c": "http://b:1"})
    assert redaction.redact(body) == body


def test_encoded_data_with_a_key_in_it_is_looked_at_as_a_whole() -> None:
    data = orjson.dumps({"image": "iVBORw0KGgoAAAANSUhEUgAA+/" * 2000, "text": "sk-proj-abcdefghijklmnop1234"})
    assert json.loads(redaction.redact(data))["text"] == "[redacted:api-key]"


PARTS = st.one_of(st.text(max_size=20), st.sampled_from([*SECRETS, "http://u:p@", "Bearer ", "\\", '"', "-----BEGIN PRIVATE KEY-----"]))


@given(st.recursive(st.lists(PARTS, max_size=4).map("".join), lambda inner: st.lists(inner) | st.dictionaries(st.just("k"), inner)))
def test_json_stays_json_of_the_same_shape(value: object) -> None:
    def shape(item: object) -> object:
        if isinstance(item, dict):
            return {key: shape(inner) for key, inner in item.items()}
        return [shape(inner) for inner in item] if isinstance(item, list) else type(item)

    text = json.loads(redaction.redact(orjson.dumps(value)))
    assert shape(text) == shape(value)


WORDS = st.sampled_from(
    [*SECRETS, *(shape.anchor.decode() for shape in redaction.SHAPES), "eyJabcdefghij.eyJabcdefghij.abcdefghij", "xoxb-abcdefghij"]
)


@given(st.lists(st.one_of(WORDS, st.text(alphabet="aZ09_-./: @\n\\", max_size=20)), max_size=8).map("".join))
def test_the_quick_way_finds_what_trying_every_shape_finds(text: str) -> None:
    body = orjson.dumps(text)
    slow = body
    for shape in (*redaction._ANYWHERE, *redaction._IN_WORDS):
        slow = redaction._replaced(slow, shape)
    assert redaction.redact(body) == slow
