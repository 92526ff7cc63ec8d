"""The reference cannot drift: a route, config key, command, header or plugin group that is not documented fails a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from reef import plugins
from reef.cli.app import app
from reef.config import Config, Section
from tests.support.gateway import service

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"


def config_keys(model: type[Section], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from config_keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def commands(group: typer.core.TyperGroup, prefix: str = "reef") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}"


def headers_in_the_code() -> set[str]:
    found: set[str] = set()
    for folder in ("reef", "adapters", "harness_templates"):
        for file in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r"\bx-reef-[a-z-]+", file.read_text()))
    return found


@pytest.mark.parametrize("key", sorted(config_keys(Config)))
def test_every_config_key_is_documented(key: str) -> None:
    assert f"`{key}`" in (REFERENCE / "configuration.md").read_text()


def test_no_documented_config_key_is_gone() -> None:
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", (REFERENCE / "configuration.md").read_text(), re.MULTILINE))
    assert documented == set(config_keys(Config))


def test_every_route_is_documented_and_no_documented_one_is_gone(tmp_path: Path) -> None:
    with service(tmp_path, upstream="http://127.0.0.1:1/v1") as gateway:
        paths = gateway.request("GET", "/openapi.json").json["paths"]
    text = (REFERENCE / "http.md").read_text()
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    documented = set(re.findall(r"^\| `((?:GET|POST|HEAD|PUT|DELETE) [^`?]+)", text, re.MULTILINE))
    assert served == documented


def test_every_command_is_documented() -> None:
    text = (REFERENCE / "cli.md").read_text()
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert [command for command in commands(group) if f"`{command}" not in text] == []


def test_every_header_is_documented() -> None:
    text = (REFERENCE / "http.md").read_text()
    assert [header for header in sorted(headers_in_the_code()) if f"`{header}`" not in text] == []


def test_every_plugin_group_is_documented() -> None:
    text = (REFERENCE / "plugins.md").read_text()
    assert [namespace for namespace in plugins.NAMESPACES if f"`{namespace}`" not in text] == []


def test_no_shipped_plugin_is_broken() -> None:
    assert {namespace: plugins.broken(namespace) for namespace in plugins.NAMESPACES if plugins.broken(namespace)} == {}


def test_the_first_two_commands_of_the_readme_are_the_demo_and_the_tests() -> None:
    lines = re.findall(r"^(make \w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert lines[:2] == ["make demo", "make test"]
