"""What goes wrong while full weights are brought: what served before serves on, the state is clean, and the next look succeeds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.errors import EngineError, WeightSyncError
from reef.learner.staging import Stager
from reef.releases import staging
from reef.serving.engine.client import EngineClient
from reef.serving.sync.bring import Order, bring, settle
from reef.serving.sync.choose import choose
from reef.serving.sync.engines import Deadline
from reef.serving.sync.interface import WeightKind, weights_in
from reef.serving.sync.transfer import _load
from tests.serving.engine import test_full_weights
from tests.serving.engine.test_full_weights import engine, gateway, models, release, said, stager_of
from tests.support.engine import Running
from tests.support.engine import engine as an_engine
from tests.support.gateway import Service, service, until

__all__ = ["engine", "gateway", "models"]


@contextlib.contextmanager
def halted(running: Running) -> Iterator[list[int]]:
    """An engine whose workers do nothing."""
    found = [pid for pid, name in running.processes().items() if "VLLM::" in name]
    assert found
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield found
    finally:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def senders() -> list[int]:
    """The processes of this one that bring weights somewhere."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid() and b"reef.serving.sync\0" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


class Looking(threading.Thread):
    """A look at an engine, from a thread of its own."""

    def __init__(self, stager: Stager) -> None:
        super().__init__()
        self._stager = stager
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._stager.look()
        except Exception as error:
            self.error = error


def served_first(gateway: Service, engine: Running, models: Path, folder: Path) -> tuple[Stager, tuple[str, list[float]]]:
    """An engine that serves a release, and what that answers."""
    stager = stager_of(gateway, engine, folder)
    step = release(gateway, models / "1")
    stager.look()
    until(lambda: said(gateway)[0] == f"default.{step}", within_s=60)
    return stager, said(gateway)


def test_a_sender_that_is_killed_while_the_engine_is_busy_leaves_the_old_weights_serving(
    engine: Running, gateway: Service, models: Path, tmp_path: Path
) -> None:
    _, before = served_first(gateway, engine, models, tmp_path)
    step = release(gateway, models / "2")
    failed: list[WeightSyncError] = []

    def sending() -> None:
        try:
            bring(Order(url=engine.url, name=f"default.{step}", folder=str(models / "2")), stop=threading.Event())
        except WeightSyncError as error:
            failed.append(error)

    with halted(engine):
        thread = threading.Thread(target=sending)
        thread.start()
        (sender,) = until(senders, within_s=60)
        os.kill(sender, signal.SIGKILL)
        thread.join(60)
    assert "ended with -9" in failed[0].message
    settle(engine.client)
    assert said(gateway) == before
    stager_of(gateway, engine, tmp_path / "again").look()
    until(lambda: said(gateway)[0] == f"default.{step}", within_s=60)


def test_an_engine_that_never_answers_is_named_and_gets_the_weights_once_it_does(
    engine: Running, gateway: Service, models: Path, tmp_path: Path
) -> None:
    _, before = served_first(gateway, engine, models, tmp_path)
    step = release(gateway, models / "2")
    with halted(engine), pytest.raises(WeightSyncError, match=engine.url):
        bring(Order(url=engine.url, name=f"default.{step}", folder=str(models / "2"), stage_s=3, activate_s=3), stop=threading.Event())
    settle(engine.client)
    assert said(gateway) == before
    stager_of(gateway, engine, tmp_path / "again").look()
    until(lambda: said(gateway)[0] == f"default.{step}", within_s=60)


def test_an_engine_that_a_sync_left_paused_goes_on_by_the_name_of_what_it_has(
    engine: Running, gateway: Service, models: Path, tmp_path: Path
) -> None:
    served_first(gateway, engine, models, tmp_path)
    step = release(gateway, models / "2")
    weights = weights_in(models / "2", name=f"default.{step}")
    choose(WeightKind.FULL, [engine.client], way="gloo").stage(weights)
    engine.client.pause()
    _load(engine.client, weights.name, Deadline(60))  # and here the sync dies: nothing says yet what serves
    settle(engine.client)
    assert not engine.client.is_paused()
    assert engine.client.served() == weights.name
    stager_of(gateway, engine, tmp_path / "again").look()
    until(lambda: said(gateway)[0] == weights.name, within_s=60)


def test_a_disk_that_is_full_leaves_the_old_weights_serving(engine: Running, gateway: Service, models: Path, tmp_path: Path) -> None:
    _, before = served_first(gateway, engine, models, tmp_path)
    small = tmp_path / "small"
    small.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], capture_output=True, timeout=20)
    if made.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        step = release(gateway, models / "2")
        stager = stager_of(gateway, engine, small)
        stager.look()
        assert "cannot be laid out" in stager.why_not(f"default.{step}")
        assert said(gateway) == before
        assert [path.name for path in (small / "weights").iterdir()] == []
        subprocess.run(["mount", "-o", "remount,size=50m", str(small)], check=True, timeout=20)
        stager_of(gateway, engine, small).look()
        until(lambda: said(gateway)[0] == f"default.{step}", within_s=60)
    finally:
        subprocess.run(["umount", "-l", str(small)], timeout=20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_engine_that_is_killed_during_a_sync_has_the_heads_weights_before_it_answers_again(models: Path, tmp_path: Path) -> None:
    with an_engine(tmp_path / "one") as first:
        port = int(first.url.rpartition(":")[2])
        vllm = {"attach": first.url, "name": "tiny"}
        with service(tmp_path / "state", upstream="", serving={"vllm": vllm}, storage_section={"tokens": "always"}) as gateway:
            until(lambda: "default" in gateway.state.scenarios.heads, within_s=60)
            stager, before = served_first(gateway, first, models, tmp_path)
            step = release(gateway, models / "2")
            with halted(first) as workers:
                looking = Looking(stager)
                until(senders, within_s=60)
                for pid in workers:
                    os.kill(pid, signal.SIGKILL)
            looking.join(300)
            assert not looking.is_alive()
            assert looking.error is None or isinstance(looking.error, EngineError)
            until(lambda: not first.processes(), within_s=120)
            with pytest.raises(EngineError):
                stager.look()
            with gateway.state.engine.connect() as connection:
                assert staging.noted(connection, first.url) == set()
            with an_engine(tmp_path / "two", port=port) as second:
                assert gateway.chat({**test_full_weights.ASKED, "model": "tiny"}).status == 404
                stager_of(gateway, second, tmp_path / "again").look()
                until(lambda: said(gateway)[0] == f"default.{step}", within_s=60)
                assert said(gateway)[1] != before[1]
                gateway.state.controller.rollback("default", step - 1)
                stager_of(gateway, second, tmp_path / "back").look()
                until(lambda: said(gateway)[0] == f"default.{step + 1}", within_s=60)
                assert said(gateway)[1] == before[1]


def test_an_engine_that_cannot_say_what_it_serves_gets_no_full_weights(tmp_path: Path, models: Path) -> None:
    with service(tmp_path / "state", upstream="http://127.0.0.1:1/v1") as gateway:  # a server, but no engine
        client = EngineClient(gateway.url)
        order = Order(url=gateway.url, name="default.2", folder=str(models / "1"), stage_s=5, activate_s=5)
        with pytest.raises(WeightSyncError, match="cannot say which full weights it serves"):
            bring(order, stop=threading.Event())
        assert client.served() == ""
