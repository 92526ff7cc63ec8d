"""Processes and threads that create a scenario at once. Publishers that race or die: tests/e2e/test_release_crash.py."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chains import STARTER, Bench

from reef.experience.database import create_tables


def _ensure(folder: Path) -> str:
    return Bench.open(folder).controller.ensure_scenario("shared", starter=STARTER).hash


def test_processes_that_create_a_scenario_at_once_get_the_same_release(tmp_path: Path) -> None:
    create_tables(Bench.open(tmp_path).engine)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        hashes = pool.map(_ensure, [tmp_path] * 3)
    assert len(set(hashes)) == 1
    assert Bench.open(tmp_path).controller.verify("shared") == []


def test_threads_that_create_a_scenario_at_once_get_the_same_release(bench: Bench) -> None:
    with ThreadPoolExecutor(6) as pool:
        releases = list(pool.map(lambda _: bench.controller.ensure_scenario("shared", starter=STARTER), range(6)))
    assert len(set(releases)) == 1
