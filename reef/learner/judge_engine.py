"""The engine that full weights are judged on: a second one, beside the one that serves, for as long as a candidate is tried.

Like :mod:`reef.learner.staging` it follows the database: while a candidate with full weights is judged or on canary, an engine runs on its
checkpoint and is noted as having it; else none runs. It is watched as the serving one is, by ``python -m reef.serving.engine`` with a state
folder of its own, at low priority, and it ends with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import structlog

from reef import process
from reef.artifacts import checkpoints
from reef.artifacts.folders import Kind, kind_of
from reef.config import Config
from reef.errors import ConfigError, EngineError, ReefError
from reef.learner.ground import TrainingGround
from reef.releases import staging
from reef.releases.publishing import writing
from reef.releases.staging import Wanted
from reef.releases.store import ReleaseStore
from reef.serving.engine import cores, leftovers, notes
from reef.serving.engine.client import EngineClient

log = structlog.get_logger()

LOG = "judge-engine.log"
LOG_BYTES = 16 * 1024 * 1024
CHECK_EVERY_S = 2.0
BACKOFF_FIRST_S = 5.0
BACKOFF_MOST_S = 60.0
END_S = 15.0
"""Bound on its end; its watcher gives it some seconds less."""
COMPUTED_IN = ("bfloat16", "float16")
_NOT_FOR_IT = (process.TRIAL_TOKEN, process.PROPOSER_TOKEN, process.LISTEN_FD, process.ENGINE_NOTE)


class JudgeEngine:
    """Runs an engine on the candidate that is tried.

    Args:
        store: database and artifacts.
        config: the whole of the configuration, the engine's port found.
        stop: set when it is time to end.
    """

    def __init__(self, store: ReleaseStore, *, config: Config, stop: threading.Event) -> None:
        self._store = store
        self._config = config
        self._stop = stop
        self._state = config.state_dir / notes.JUDGE
        self._client = EngineClient(config.serving.vllm.judge_url)
        self._running: _Running | None = None
        self._noted = ""
        self._looked_at = 0.0
        self._retry_at = 0.0
        self._backoff_s = 0.0
        self._refused: dict[str, str] = {}

    def start(self, *, interval_s: float) -> None:
        """Begin, in a thread. What a learner before this one left is ended first."""
        leftovers.end(mark=str(self._state / "run"))
        self._forget_all()
        threading.Thread(target=self._run, args=(interval_s,), name="judge-engine", daemon=True).start()

    def why_not(self, name: str) -> str:
        """Why the candidate of a name has no engine; empty where nothing is known to be wrong."""
        return self._refused.get(name, "")

    def look(self) -> None:
        """Compare what is wanted with what runs.

        Raises:
            ReefError: the candidate cannot be laid out, or not be served.
        """
        wanted = self._wanted()
        if self._running is not None and (wanted is None or self._running.name != wanted.name):
            self.end()
        if wanted is None:
            return
        if self._running is None:
            if time.monotonic() >= self._retry_at:
                self._begin(wanted)
        elif self._running.process.poll() is not None:
            self._died(wanted)
        elif time.monotonic() - self._looked_at >= (CHECK_EVERY_S if self._noted else 0):
            self._check(wanted)

    def end(self) -> None:
        """End the engine, if one runs, with all of its processes."""
        running, self._running = self._running, None
        self._forget_all()
        if running is not None:
            running.end()
            log.info("the engine of a candidate ended", candidate=running.name)

    def _run(self, interval_s: float) -> None:
        try:
            while not self._stop.wait(interval_s):
                try:
                    self.look()
                except ReefError as error:
                    log.warning("no engine for the candidate", reason=error.message)
                except Exception:  # a bug; one that is seen, and the next look may find another state
                    log.exception("looking after the engine of a candidate failed")
                    self._stop.wait(interval_s * 4)
        finally:
            self.end()

    def _wanted(self) -> Wanted | None:
        """The newest candidate with full weights that is tried: of one before it the judge is gone."""
        with self._store.engine.connect() as connection:
            tried = [weights for weights in staging.wanted(connection, keep=0) if weights.step is None]
        if self._running is not None and any(weights.name == self._running.name for weights in tried[-1:]):
            return tried[-1]
        for weights in reversed(tried):
            if kind_of(self._store.artifacts.read(weights.content.commit)) is Kind.CHECKPOINT:
                return weights
        return None

    def _begin(self, wanted: Wanted) -> None:
        cache = self._state / "weights"
        try:
            folder = checkpoints.materialise(self._store.artifacts, wanted.content.commit, cache=cache)
        except ReefError as error:
            self._failed(wanted, error.message)
            raise
        checkpoints.drop(cache, keep=[folder.name])
        vllm = self._config.serving.vllm.of_candidate(str(folder), name=wanted.name, dtype=self._dtype())
        vllm = vllm.model_copy(update={"environment": {cores.VARIABLE: cores.judging()} | vllm.environment})
        config = self._config.model_copy(
            update={
                "serving": self._config.serving.model_copy(update={"vllm": vllm}),
                "storage": self._config.storage.model_copy(update={"dir": str(self._state)}),
            }
        )
        (self._state / "run").mkdir(parents=True, exist_ok=True)
        self._running = _Running(wanted.name, config, log=self._config.state_dir / "log" / LOG, nice=vllm.judge_engine.nice)
        log.info("an engine for a candidate starts", candidate=wanted.name, url=self._client.url)

    def _check(self, wanted: Wanted) -> None:
        self._looked_at = time.monotonic()
        try:
            there = wanted.name in self._client.models()
        except EngineError:
            return  # its watcher decides whether that is its end
        if there and self._noted != wanted.name:
            with writing(self._store.engine) as tx:
                staging.note(tx, self._client.url, wanted)
            self._noted = wanted.name
            self._refused.clear()
            self._backoff_s = 0.0
            log.info("the engine of a candidate is ready", candidate=wanted.name)

    def _died(self, wanted: Wanted) -> None:
        note = notes.read(self._state / "run" / notes.FILE)
        self.end()
        self._failed(wanted, note.detail if note is not None and note.detail else "it ended")

    def _failed(self, wanted: Wanted, reason: str) -> None:
        self._backoff_s = min(max(BACKOFF_FIRST_S, self._backoff_s * 2), BACKOFF_MOST_S)
        self._retry_at = time.monotonic() + self._backoff_s
        self._refused = {wanted.name: reason}
        log.error("the engine of a candidate is down", candidate=wanted.name, reason=reason, again_in_s=self._backoff_s)

    def _dtype(self) -> str:
        """What the serving engine computes in: checkpoints are float32 whatever the base is."""
        given = self._config.serving.vllm.dtype
        if given != "auto":
            return given
        try:
            about = json.loads((TrainingGround.of(self._config, stop=self._stop).base() / "config.json").read_text(encoding="utf-8"))
        except (ConfigError, OSError, ValueError):
            return given
        found = about.get("dtype") or about.get("torch_dtype")
        return str(found) if found in COMPUTED_IN else given

    def _forget_all(self) -> None:
        self._noted = ""
        with self._store.engine.connect() as connection:
            noted = staging.noted(connection, self._client.url)
        if noted:
            with writing(self._store.engine) as tx:
                staging.forget(tx, self._client.url, noted)


class _Running:
    """The watcher of one engine, and its end of a pipe that closes with this process, whatever ends it."""

    def __init__(self, name: str, config: Config, *, log: Path, nice: int) -> None:
        self.name = name
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        alive_read, self._alive = os.pipe()
        variables = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_IT}
        variables |= {process.CONFIG: config.model_dump_json(), process.PARENT_FD: str(alive_read)}
        try:
            with log.open("ab") as output:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "reef.serving.engine"],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=variables,
                    pass_fds=(alive_read,),
                    start_new_session=True,
                )
        except OSError:
            os.close(self._alive)
            raise
        finally:
            os.close(alive_read)
        with contextlib.suppress(OSError):  # what it starts inherits it; it has not started anything yet
            os.setpriority(os.PRIO_PROCESS, self.process.pid, nice)

    def end(self) -> None:
        """End it, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # the engine's guard sees it, and ends the rest
            self.process.wait()
        os.close(self._alive)
