"""What can be configured of upstreams, and that a wrong configuration is told with its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reef.config import Config, load
from reef.errors import ConfigError, InvalidRequest, PluginError, UpstreamError
from reef.serving.passthrough import OpenAIUpstream
from reef.serving.upstreams import Upstreams
from reef.supervisor import check_servable

A: dict[str, Any] = {"url": "http://a/v1", "model": "m"}


class Polite(OpenAIUpstream):
    """A third party's."""


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"upstreams": {"a": {"kind": "openai"}}}, "upstreams.a.url: is needed"),
        ({"upstreams": {"a/b": A}}, "upstreams.a/b"),
        ({"upstreams": {"a": {**A, "retries": 99}}}, "upstreams.a.retries"),
        ({"upstreams": {"a": A}, "models": {"smart": ["b"]}}, "models.smart: b is no upstream .there are: a."),
        ({"upstreams": {"a": A}, "models": {"smart": []}}, "models.smart"),
        ({"models": {"smart": ["a"]}}, "there are: none"),
        ({"upstream": A, "upstreams": {"upstream": A}}, "choose another"),
        ({"upstreams": {"a": {"kind": "litellm", "model": "gpt-5"}}}, "PROVIDER/MODEL"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(**sections)


def test_the_short_form_comes_first_and_survives_the_way_to_a_child_process() -> None:
    config = load(upstream={"url": "http://c/v1"}, upstreams={"a": A, "sim": {"kind": "rehearsal"}}, models={"smart": "a/x"})
    assert list(config.named_upstreams) == ["upstream", "a", "sim"]
    assert (config.default_model, config.models["smart"]) == ("", ("a/x",))
    assert (config.upstreams["sim"].url, config.upstreams["sim"].kind) == ("rehearsal", "rehearsal")
    assert Config.model_validate_json(config.model_dump_json()) == config
    assert load(upstreams={"a": A}).default_model == "m"


def test_the_rehearsal_word_wins_over_a_configured_kind() -> None:
    assert load(upstream={"url": "rehearsal", "kind": "vllm"}).upstream.kind == "rehearsal"


def test_a_kind_can_be_a_third_partys_class() -> None:
    config = load(upstreams={"a": {**A, "kind": f"{__name__}:Polite"}, "b": {"kind": "vllm", "url": "http://b"}})
    upstreams = Upstreams(config)
    assert type(upstreams.named["a"]).__name__ == "Polite"
    assert not upstreams.route("chat", "a/m").gives_tokens
    assert upstreams.route("messages", "b/m").gives_tokens
    with pytest.raises(PluginError, match="no nothing in"):
        Upstreams(load(upstreams={"a": {**A, "kind": "nothing"}}))
    with pytest.raises(PluginError, match="is no upstream"):
        Upstreams(load(upstreams={"a": {**A, "kind": "builtins:dict"}}))


def test_what_nobody_speaks_and_nobody_translates_is_told_before_it_is_asked() -> None:
    upstreams = Upstreams(load(upstreams={"a": {**A, "translate": False}}))
    with pytest.raises(InvalidRequest, match="does not speak the messages dialect"):
        upstreams.route("messages", "m")
    with pytest.raises(UpstreamError, match="no upstream is configured"):
        Upstreams(load()).route("chat", "m")


def test_serving_is_refused_without_a_key_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_KEY_A", raising=False)
    with pytest.raises(ConfigError, match=r"upstreams\.a\.key_env names TEST_KEY_A"):
        check_servable(load(upstreams={"a": {**A, "key_env": "TEST_KEY_A"}}))
    with pytest.raises(ConfigError, match="no upstream is configured"):
        check_servable(load())


def test_neither_the_command_line_nor_a_gateway_that_translates_nothing_imports_litellm(tmp_path: Path) -> None:
    program = (
        "import sys, reef.cli.app, reef.supervisor, reef.gateway.app, reef.config as c\n"
        "from reef.serving.upstreams import Upstreams\n"
        "Upstreams(c.load(upstream={'url': 'http://a/v1'}, upstreams={'b': {'kind': 'vllm', 'url': 'http://b/v1'}}))\n"
        "assert not [name for name in sys.modules if name.startswith('litellm')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=tmp_path, env=dict(os.environ))
