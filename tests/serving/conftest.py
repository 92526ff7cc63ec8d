"""One engine for all tests that need one: starting it takes half a minute and three gigabytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine import Running, engine


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A vLLM that serves the tiny model in float32. Whoever changes its weights or pauses it puts it back."""
    with engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture
def own_engine(tiny_engine: Running) -> Iterator[Running]:
    """The same for a test that has LoRAs brought to it: they are gone afterwards, so that the next one may use their names."""
    yield tiny_engine
    for lora in tiny_engine.client.models()[1:]:
        tiny_engine.client.unload_lora(lora)
