"""Starts vLLM, watches it, and ends with an error when it dies: the supervisor then starts this again, with back-off."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from reef.config import Config
from reef.errors import ConfigError, EngineError, EngineTimeout, ReefError
from reef.serving.engine import command, cores, guard, leftovers, notes
from reef.serving.engine.client import EngineClient
from reef.serving.engine.notes import Note, State
from reef.serving.models import resolving

POLL_S = 0.25
HEALTH_EVERY_S = 2.0
HEALTH_S = 5.0
"""Bound on one look at its health."""
DEAD = "its server says that the engine behind it is dead"
GRACE_S = 6.0
"""How long it gets to end by itself; the supervisor waits 15 s for all of this."""


class EngineDied(ReefError):
    """The engine is gone, or had to be killed."""


class Watcher:
    """One engine, from its start to its end.

    Args:
        config: the whole of the configuration, the engine's port found.
        stop: set when it is to end.
    """

    def __init__(self, config: Config, *, stop: threading.Event) -> None:
        self._base = config
        self._config = config.serving.vllm
        self._run = config.state_dir / "run"
        self._stop = stop
        self._client = EngineClient(self._config.url, key=os.environ.get(self._config.key_env, "") if self._config.key_env else "")
        before = notes.read(self._run / notes.FILE)
        self._note = Note("starting", time.time(), self._config.served_name, self._config.url, start_s=before.start_s if before else None)
        self._before = before

    def run(self) -> None:
        """Return when asked to stop.

        Raises:
            ReefError: the engine cannot be started, died, or gave no sign of life.
        """
        try:
            if self._config.attach:
                self._attend()
            else:
                self._serve()
        except ReefError as error:
            self._tell("failed", detail=error.message)
            raise
        self._tell("stopped")

    def _serve(self) -> None:
        leftovers.end(mark=self._mark)
        on = command.device()
        model = self._model()
        if self._stop.is_set():
            return
        template = self._base.path(self._config.chat_template) if self._config.chat_template else None
        if template is not None and not template.is_file():
            raise ConfigError(f"there is no chat template {template}", hint="Mend serving.vllm.chat_template.")
        bind = cores.serving(judged=self._base.judges_full_weights)
        wanted = command.command(self._config, model=model, on=on, chat_template=template, mark=self._mark, bind=bind)
        started = time.monotonic()
        with self._started(wanted.arguments, wanted.environment) as process:
            self._tell("starting", pid=process.pid)
            self._until_ready(process, deadline=started + self._config.startup_timeout_s)
            if not self._stop.is_set():
                self._tell("ready", start_s=time.monotonic() - started)
                self._keep(lambda: self._still_runs(process))

    @property
    def _mark(self) -> str:
        return str(self._run)

    def _model(self) -> str:
        """What vLLM is told to load. A model of ours that is not there yet is made first, in a process that gives its memory back."""
        model = self._config.model
        if not resolving.made_here(model):
            folder = self._base.path(model)
            return str(folder) if folder.is_dir() else model
        if not resolving.is_there(model):
            self._tell("fetching", detail=f"{model} is made once, and kept in {resolving.place_of(model)}")
            made = subprocess.Popen(
                [sys.executable, "-m", "reef.serving.models", model], env={**os.environ, "TQDM_DISABLE": "1"}, stdout=sys.stderr
            )
            while made.poll() is None and not self._stop.wait(POLL_S):
                pass
            if made.poll() is None:
                made.kill()
            if made.wait() != 0 and not self._stop.is_set():
                raise EngineDied(f"{model} cannot be fetched", hint="The log of the engine says why: `reef status` says where it is.")
        return str(resolving.place_of(model))

    @contextlib.contextmanager
    def _started(self, arguments: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """The processes of the engine, all of which are gone at the end, whatever ends it."""
        alive_read, alive_write = os.pipe()  # the write end is this process's alone: closed when it ends, even by SIGKILL
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(guard.__file__)), str(alive_read), *arguments],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                pass_fds=(alive_read,),
                start_new_session=True,
            )
        finally:
            os.close(alive_read)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # after the death of an engine vLLM's server and resource tracker ignore SIGTERM
            process.wait()
            os.close(alive_write)

    def _until_ready(self, process: subprocess.Popen[bytes], *, deadline: float) -> None:
        while not self._stop.wait(POLL_S):
            self._still_runs(process)
            with contextlib.suppress(EngineError):
                if self._client.health(timeout_s=HEALTH_S):
                    return
            if time.monotonic() > deadline:
                raise EngineDied(
                    f"the engine did not get ready within {self._config.startup_timeout_s:g} s", hint="See serving.vllm.startup_timeout_s."
                )

    def _attend(self) -> None:
        """Watch an engine that somebody else runs; it may come and go."""
        self._keep(lambda: None, mine=False)

    def _keep(self, still_runs: Callable[[], None], *, mine: bool = True) -> None:
        """Look at it until asked to stop."""
        seen = looked = time.monotonic() - (0 if mine else HEALTH_EVERY_S)
        while True:
            if time.monotonic() - looked >= HEALTH_EVERY_S:
                looked = time.monotonic()
                alive, why = self._looks_alive()
                if alive:
                    seen = time.monotonic()
                    self._tell("ready")
                elif not mine:
                    self._tell("silent", detail=why)
                elif why == DEAD or time.monotonic() - seen > self._config.health_timeout_s:
                    raise EngineDied(f"the engine was killed: {why}", hint="It is started again; its log has the details.")
            still_runs()
            if self._stop.wait(POLL_S):
                return

    def _looks_alive(self) -> tuple[bool, str]:
        try:
            return (True, "") if self._client.health(timeout_s=HEALTH_S) else (False, DEAD)
        except EngineTimeout:
            return False, "it gave no sign of life"
        except EngineError as error:
            return False, error.message

    def _still_runs(self, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        if code is not None:
            raise EngineDied(f"the engine ended with {code}", hint="It is started again; its log has the details.")

    def _tell(self, state: State, *, detail: str = "", pid: int | None = None, start_s: float | None = None) -> None:
        """Write the state down where it is another than before."""
        since = self._note.since if state == self._note.state else time.time()
        pid = None if state in ("stopped", "failed", "fetching") else pid or self._note.pid
        told = replace(self._note, state=state, since=since, detail=detail, pid=pid, start_s=start_s or self._note.start_s)
        if told != self._note or not (self._run / notes.FILE).exists() or self._before is not None:
            self._before = None
            self._note = told
            notes.write(self._run, told)
