"""The processes of one `reef serve`: gateways, learner and, where they are wanted, the engine and the stand-in model.

One command starts them, one Ctrl-C ends them; what dies is started again with back-off. The supervisor owns the listening socket and hands
it down, so a gateway that restarts loses neither the port nor the connections waiting in the backlog.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import ipaddress
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reef import plugins, process
from reef.config import ENGINE, KINDS, REHEARSAL, Config, UpstreamConfig
from reef.errors import ConfigError, ReefError
from reef.serving.engine import command, notes
from reef.serving.models import resolving
from reef.serving.models.folders import INSTALL

BACKOFF_FIRST_S = 0.2
BACKOFF_MOST_S = 3.0
STEADY_AFTER_S = 10.0
"""A process that lived this long starts again without delay."""
ENGINE_KIND = "serving.engine"
ENGINE_BACKOFF_MOST_S = 60.0
"""Each try to start an engine costs half a minute of all cores."""
ENGINE_STEADY_AFTER_S = 180.0
STOP_S = 15.0
"""Bound on a clean stop; longer than the gateway's own bound on finishing answers."""
LOG_BYTES = 16 * 1024 * 1024
"""A log beyond this is set aside (one generation) when its process starts."""
REHEARSAL_MODEL = "rehearsal-1"


@dataclass
class Child:
    """One process that is kept alive."""

    name: str
    kind: str
    """The package it runs, below ``reef``; several may run the same."""
    environment: dict[str, str]
    fds: tuple[int, ...]
    popen: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restarts: int = 0
    last_exit: int | None = None
    backoff_s: float = BACKOFF_FIRST_S
    backoff_most_s: float = BACKOFF_MOST_S
    steady_after_s: float = STEADY_AFTER_S
    due_at: float = field(default=0.0)


class Supervisor:
    """Runs the processes until asked to stop.

    Args:
        config: the resolved configuration.
        say: gets one line for the person at the terminal at each event.

    Raises:
        ConfigError: the configuration cannot be served as it is.
    """

    def __init__(self, config: Config, *, say: Callable[[str], None]) -> None:
        check_servable(config)
        self._say = say
        self._state = config.state_dir
        self._run = self._state / "run"
        self._logs = self._state / "log"
        for folder in (self._state, self._run, self._logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._stop = threading.Event()
        self._config = config
        self._children: list[Child] = []
        self._engine_news = notes.News(self._run)
        self.url = ""

    def run(self) -> None:
        """Start everything, keep it alive, and return after a clean stop.

        Raises:
            ReefError: another supervisor has the state folder, the address is taken, or nothing got ready in time.
        """
        with alone(self._state), contextlib.ExitStack() as stack:
            self._prepare_database()
            self._plan(stack)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: self._stop.set())
            try:
                first, last = self._in_order()
                for child in first:
                    self._start(child)
                self._wait_until_ready()
                for child in last:
                    self._start(child)
                while not self._stop.wait(0.05):
                    self._tend()
            finally:
                self._end()

    def _prepare_database(self) -> None:
        from reef.experience import database, schema  # noqa: F401 - registers its tables
        from reef.releases import schema as _releases  # noqa: F401

        engine = database.connect(self._config.database_url)
        try:
            database.create_tables(engine)
        finally:
            engine.dispose()

    def _plan(self, stack: contextlib.ExitStack) -> None:
        """Bind the sockets and decide which processes there are."""
        config = self._config
        alive_read, alive_write = os.pipe()  # the write end closes with this process, whatever ends it
        stack.callback(os.close, alive_write)
        stack.callback(os.close, alive_read)
        common = {
            process.PARENT_FD: str(alive_read),
            process.TRIAL_TOKEN: secrets.token_urlsafe(32),
            process.PROPOSER_TOKEN: secrets.token_urlsafe(32),
        }
        if any(upstream.url == REHEARSAL for upstream in config.named_upstreams.values()):
            listener = stack.enter_context(_listen("127.0.0.1", 0))
            config = _with_rehearsal(config, url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
            self._children.append(self._child("rehearsal", common, config, listener))
        if config.serving.vllm.wanted:
            config = self._plan_engine(stack, common, config)
        listener = stack.enter_context(_listen(config.listen.host, config.listen.port))
        self.url = _reachable_url(config.listen.host, listener.getsockname()[1])
        common[process.GATEWAY_URL] = self.url
        for number in range(1, config.listen.workers + 1):
            worker = {**common, process.WORKER: str(number)}
            self._children.append(self._child("gateway", worker, config, listener, number=number))
        self._children.append(self._child("learner", common, config, None))

    def _in_order(self) -> tuple[list[Child], list[Child]]:
        """What starts first, and what once the gateway answers: an engine's start takes all cores for half a minute."""
        engines = [child for child in self._children if child.kind == ENGINE_KIND]
        return [child for child in self._children if child not in engines], engines

    def _plan_engine(self, stack: contextlib.ExitStack, common: dict[str, str], config: Config) -> Config:
        """Find the engine a port, and say where it stands before anything of it has begun."""
        vllm = config.serving.vllm
        if vllm.model:
            held = stack.enter_context(_hold_port(vllm.host, vllm.port))
            vllm = vllm.model_copy(update={"port": held.getsockname()[1]})
        if config.judges_full_weights:
            held = stack.enter_context(_hold_port(vllm.host, vllm.judge_engine.port))
            judge = vllm.judge_engine.model_copy(update={"port": held.getsockname()[1]})
            vllm = vllm.model_copy(update={"judge_engine": judge})
        config = config.model_copy(update={"serving": config.serving.model_copy(update={"vllm": vllm})})
        before = notes.read(self._run / notes.FILE)
        told = notes.Note("starting", time.time(), vllm.served_name, vllm.url, start_s=before.start_s if before else None)
        notes.write(self._run, told)
        common[process.ENGINE_NOTE] = str(self._run / notes.FILE)
        child = self._child(ENGINE_KIND, common, config, None)
        child.name, child.backoff_most_s, child.steady_after_s = ENGINE, ENGINE_BACKOFF_MOST_S, ENGINE_STEADY_AFTER_S
        self._children.append(child)
        if to_fetch := resolving.still_to_fetch(vllm.model):
            self._say(to_fetch)
        self._say(f"the engine ({vllm.served_name or vllm.url}) gets ready in its own time, told here: `reef status` says how far it is")
        return config

    def _child(self, kind: str, common: dict[str, str], config: Config, listener: socket.socket | None, *, number: int = 1) -> Child:
        environment = {**common, process.CONFIG: config.model_dump_json()}
        fds = [int(common[process.PARENT_FD])]
        if listener is not None:
            environment[process.LISTEN_FD] = str(listener.fileno())
            fds.append(listener.fileno())
        name = kind if number == 1 else f"{kind}-{number}"
        return Child(name=name, kind=kind, environment=environment, fds=tuple(fds))

    def _start(self, child: Child) -> None:
        log = self._logs / f"{child.name}.log"
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        with log.open("ab") as output:
            child.popen = subprocess.Popen(
                [sys.executable, "-m", f"reef.{child.kind}"],
                env={**os.environ, **child.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=child.fds,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which then stops them in order
            )
        child.started_at = time.time()
        self._write_state()

    def _tend(self) -> None:
        """Notice what died, and start it again when its back-off is over."""
        if self._config.serving.vllm.wanted and (news := self._engine_news.line()):
            self._say(news)
        now = time.time()
        for child in self._children:
            if child.popen is None:
                if now >= child.due_at:
                    child.restarts += 1
                    self._start(child)
                continue
            code = child.popen.poll()
            if code is None:
                continue
            child.popen, child.last_exit = None, code
            steady = now - child.started_at >= child.steady_after_s
            child.backoff_s = BACKOFF_FIRST_S if steady else min(child.backoff_s * 2, child.backoff_most_s)
            child.due_at = now + child.backoff_s
            self._say(f"{child.name} ended with {code}; starting it again in {child.backoff_s:.1f} s (log: {self._logs / child.name}.log)")
            self._write_state()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not self._stop.is_set():
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=1):  # noqa: S310 - our own address
                self._say(f"ready at {self.url}")
                return
            gateway = next(child for child in self._children if child.name == "gateway")
            if gateway.popen is not None and gateway.popen.poll() is not None:
                break
            time.sleep(0.02)
        if not self._stop.is_set():
            raise ReefError("the gateway did not get ready", hint=f"Its last words are in {self._logs / 'gateway.log'}.")

    def _end(self) -> None:
        """Stop in the order gateway, learner, rehearsal and engine: answers under way still need what they came from."""
        for kind in ("gateway", "learner", "rehearsal", ENGINE_KIND):
            running = [(child, child.popen) for child in self._children if child.kind == kind and child.popen is not None]
            for _, popen in running:
                popen.terminate()
            for child, popen in running:
                try:
                    child.last_exit = popen.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    self._say(f"{child.name} did not stop within {STOP_S:.0f} s: killed")
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(popen.pid, signal.SIGKILL)
                    child.last_exit = popen.wait()
                child.popen = None
        self._write_state()
        self._say("stopped")

    def _write_state(self) -> None:
        """Leave for `reef status` (and for people) who runs where."""
        state = {
            "url": self.url,
            "pid": os.getpid(),
            "processes": {
                child.name: {
                    "pid": child.popen.pid if child.popen else None,
                    "started_at": child.started_at,
                    "restarts": child.restarts,
                    "last_exit": child.last_exit,
                    "log": str(self._logs / f"{child.name}.log"),
                }
                for child in self._children
            },
        }
        process.write_atomically(self._run / "processes.json", json.dumps(state, indent=1))


@contextlib.contextmanager
def alone(state: Path) -> Iterator[None]:
    """Keep a state folder to oneself.

    Raises:
        ReefError: a `reef serve` has it.
    """
    (state / "run").mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state / "run" / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ReefError(
                f"another `reef serve` runs on {state}", hint="Stop it, or give another folder: --set storage.dir=DIR"
            ) from None
        yield


def check_servable(config: Config) -> None:
    """Refuse what would be unsafe or useless to serve.

    Raises:
        ConfigError: no upstream, or a non-loopback address without a token.
    """
    if not config.named_upstreams:
        raise ConfigError("no upstream is configured", hint="Use --upstream URL --model NAME, --upstream rehearsal, --local or -c FILE.")
    if not _is_loopback(config.listen.host) and not os.environ.get(config.auth.token_env):
        raise ConfigError(
            f"refusing to listen on {config.listen.host} without a token",
            hint=f"export {config.auth.token_env}=$(openssl rand -hex 32), or listen on 127.0.0.1.",
        )
    if config.serving.vllm.model and (problem := command.missing()):
        raise ConfigError(f"serving.vllm.model needs an engine: {problem}", hint=INSTALL)
    if config.judges_full_weights and (problem := command.missing()):
        raise ConfigError(f"training.method: full needs an engine of its own to judge on: {problem}", hint=INSTALL)
    for name, upstream in config.named_upstreams.items():
        section = "serving.vllm" if name == ENGINE and config.serving.vllm.wanted else f"upstreams.{name}"
        section = name if upstream is config.upstream else section
        if upstream.key_env and not os.environ.get(upstream.key_env):
            raise ConfigError(f"{section}.key_env names {upstream.key_env}, which is not set", hint=f"export {upstream.key_env}=…")
        if upstream.kind not in KINDS:
            plugins.load("reef.upstreams", upstream.kind)
        if upstream.kind == "litellm" and importlib.util.find_spec("litellm") is None:
            raise ConfigError(f"{section} needs LiteLLM, which is not installed", hint="pip install 'reef[litellm]'")
    _check_ray(config)


def _check_ray(config: Config) -> None:
    """Refuse what would need Ray where it is not installed."""
    for section, wanted, what in (
        ("execution", config.execution.backend, {"Ray": "ray"}),
        ("training", config.training.backend, {"Ray": "ray", "Ray Train": "pyarrow"}),
    ):
        missing = next((name for name, module in what.items() if importlib.util.find_spec(module) is None), None)
        if wanted == "ray" and missing is not None:
            raise ConfigError(f"{section}.backend is ray, and {missing} is not installed", hint="pip install 'reef[ray]'")


def _with_rehearsal(config: Config, *, url: str) -> Config:
    """The configuration with the stand-in model's address wherever an upstream is it."""

    def filled(upstream: UpstreamConfig) -> UpstreamConfig:
        if upstream.url != REHEARSAL:
            return upstream
        return upstream.model_copy(update={"url": url, "model": upstream.model or REHEARSAL_MODEL})

    others = {name: filled(upstream) for name, upstream in config.upstreams.items()}
    return config.model_copy(update={"upstream": filled(config.upstream), "upstreams": others})


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048)
    except OSError as error:
        raise ReefError(f"cannot listen on {host}:{port}: {error.strerror}", hint="Is another server there? Try --port 0.") from None


def _hold_port(host: str, port: int) -> socket.socket:
    """A port that nobody but the engine gets: bound, never listened on, so that connections are refused until the engine is there.

    vLLM binds the same one: with SO_REUSEADDR on both, Linux allows that while neither listens. Held here it stays so over restarts.
    """
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise ReefError(f"the engine cannot have {host}:{port}: {error.strerror}", hint="Leave serving.vllm.port at 0.") from None
    return held


def _reachable_url(host: str, port: int) -> str:
    """Where processes of this machine reach the gateway."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - compared, not bound
    return f"http://{name}:{port}"
