"""Fixtures for all tests."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from reef.collector import spare
from tests.support import databases

if TYPE_CHECKING:
    from tests.support.engine import Running


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the engine stay together: two workers would start two, of three gigabytes each."""
    for item in items:
        if "tiny_engine" in getattr(item, "fixturenames", ()):
            item.add_marker("alone")


def pytest_collection_finish() -> None:
    """Else each full garbage collection looks at all that was collected: 0.3 s, in which a gateway on a thread of this process stands."""
    spare()


@pytest.fixture(scope="session", autouse=True)
def no_terminal() -> Iterator[None]:
    """What commands print is as wide for everybody: who runs the tests, or pytest-xdist, may have said how wide a terminal is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        patch.delenv("LINES", raising=False)
        yield


@pytest.fixture(scope="session")
def postgresql() -> Iterator[sa.URL]:
    """A PostgreSQL server. CI must have one; a developer's machine may do without."""
    programs = databases.find_postgresql()
    if programs is None:
        problem = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    with databases.cluster(programs) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A vLLM that serves the tiny model in float32: one for all tests that need one, as starting it takes half a minute and three
    gigabytes. Whoever changes its weights or pauses it puts it back.
    """
    from tests.support.engine import engine  # half of Reef, which most tests need not import

    with engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture
def own_engine(tiny_engine: Running) -> Iterator[Running]:
    """The same for a test that has LoRAs brought to it: they are gone afterwards, so that the next one may use their names."""
    yield tiny_engine
    for lora in tiny_engine.client.models()[1:]:
        tiny_engine.client.unload_lora(lora)


@pytest.fixture(params=databases.NAMES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database, of each kind in turn; :func:`tests.support.databases.url_of` finds it by the test's folder."""
    if request.param == "sqlite":
        yield databases.url_of(tmp_path)
        return
    with databases.fresh(request.getfixturevalue("postgresql"), f"reef-{secrets.token_hex(6)}") as url:
        (tmp_path / databases.URL_FILE).write_text(url)
        yield url
