"""One small vLLM for all tests of weight sync, and the weights that go into it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.sync.engine import TinyEngine, start


def _needs(*modules: str) -> None:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (make install-model)")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders 0 to 3: models of one shape and other weights."""
    _needs("torch", "transformers", "safetensors")
    from reef.serving.models import tiny

    folder = tmp_path_factory.mktemp("models")
    for seed in range(4):
        tiny(folder / str(seed), seed=seed)
    return folder


@pytest.fixture(scope="session")
def running(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyEngine]:
    """A vLLM in float32 that was started with folder 0."""
    _needs("vllm")
    with start(models / "0", logs=tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.fixture
def engine(running: TinyEngine, models: Path) -> TinyEngine:
    """The same, serving the weights of folder 0 whatever a test before this one has left it with."""
    from reef.serving.sync.choose import choose
    from reef.serving.sync.interface import WeightKind, weights_in

    choose(WeightKind.FULL, [running.client], way="gloo").restore(weights_in(models / "0", name="start.0"))
    return running
