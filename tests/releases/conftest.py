import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from chains import Bench


@pytest.fixture(autouse=True)
def on_each_database(database_url: str) -> None:
    """Every test here runs on both."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench.create(tmp_path)
