"""The rehearsal model and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.rehearsal import rehearsing


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with rehearsing() as url:
        yield url


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
        yield client
