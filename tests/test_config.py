"""serve.yaml is checked whole, and what is wrong is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from reef.config import Config, load
from reef.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    file = folder / "serve.yaml"
    file.write_text(text)
    return file


def test_defaults_need_no_file() -> None:
    config = load()
    assert config.listen.host == "127.0.0.1"
    assert config.listen.port == 8900
    assert config.reef.recipe == "record"


def test_settings_override_options_override_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "upstream: {url: 'http://a/v1', model: m}\nlisten: {port: 1}\n")
    config = load(file, settings=["listen.port=3", "reef.options.attempts=5"], listen={"port": 2, "host": None})
    assert (config.upstream.url, config.listen.port, config.listen.host) == ("http://a/v1", 3, "127.0.0.1")
    assert config.reef.options == {"attempts": 5}


def test_environment_is_expanded_and_its_lack_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REEF_TEST_URL", "http://b/v1")
    file = write(tmp_path, "upstream: {url: '${REEF_TEST_URL}', model: '${REEF_TEST_MODEL:-small}'}\n")
    assert (load(file).upstream.url, load(file).upstream.model) == ("http://b/v1", "small")
    monkeypatch.delenv("REEF_TEST_URL")
    with pytest.raises(ConfigError, match="REEF_TEST_URL"):
        load(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("upstrem: {}", "upstrem: unknown key"),
        ("listen: {port: 70000}", "listen.port"),
        ("listen: 5", "listen"),
        ("- 1", "must hold a mapping"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(write(tmp_path, text))


def test_paths_in_the_file_start_from_its_folder(tmp_path: Path) -> None:
    config = load(write(tmp_path, "evaluation: {tasks: tasks.yaml}"))
    assert config.path(config.evaluation.tasks) == tmp_path / "tasks.yaml"


def test_it_survives_the_way_to_a_child_process() -> None:
    config = load(settings=["scenarios.names=[a, b]"])
    assert Config.model_validate_json(config.model_dump_json()) == config
