"""The tiny model, made once."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.serving.models import tiny
from tests.support.weights import Lab


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("torch", "peft", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip("the extra `train` is not installed")
    return tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def lab(tmp_path: Path, tiny_model: Path) -> Iterator[Callable[..., Lab]]:
    """Makes a :class:`Lab`, with what is given."""
    made: list[Lab] = []

    def make(**given: Any) -> Lab:
        made.append(Lab(tmp_path, tiny_model, **given))
        return made[-1]

    yield make
    for each in made:
        each.engine.dispose()
