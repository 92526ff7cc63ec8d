"""Trials on a Ray cluster (the extra ``ray``): each is one task of one CPU, wherever the cluster has room.

Ray is told to run nothing again. A trial whose worker or machine is lost is a fault of the infrastructure like any other, and the evaluator
runs both sides of its pair again. What a worker needs is in the job, but for Reef itself, in the same version, and the coding agent's CLI,
which it installs as the learner would. Between learner and workers go the token of trials, the tasks and the trees: to a cluster of one's
own, whose users may see them.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

import reef
from reef.errors import ConfigError, ReefError
from reef.evaluation.execution import Execution, Job, Outcome, Runner, attempt
from reef.evaluation.graders import Model
from reef.evaluation.tasks import grader_for
from reef.types import TrialEnd

_POLL_S = 0.2
_CANCEL_S = 10.0
"""How long a cancelled trial may take to end its agent; then its worker is killed, and the agent with it where it is sandboxed."""
_STORE_BYTES = 128 << 20
_OWN_ADDRESS = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Of a cluster of our own. Asked for 127.0.0.1, Ray takes the machine's outer address on Linux; another of the loopback it leaves."""


class ClusterError(ReefError):
    """There is no Ray cluster to work with."""

    type = "cluster_error"


@dataclass(frozen=True, slots=True)
class Tools:
    """What trials need on the machine they run on."""

    runner: Runner
    model_for: Callable[[str], Model]
    """The model for graders that ask one, by scenario."""


class Workplace(Protocol):
    """Travels to a worker and sets it up. Hashable: a worker that has one like it already goes on with that."""

    def open(self) -> Tools:
        """Bring what is needed to this machine.

        Raises:
            ReefError: it cannot be had here.
        """
        ...

    def __hash__(self) -> int: ...


class RayExecution(Execution):
    """Runs trials on a cluster, connected to at the first of them, and again after it was lost.

    Args:
        workplace: sets workers up.
        address: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``; empty starts a cluster of this process's own, which ends with it.
        workers: how many trials are asked for at the same time.
        timeout_s: bound on one, the wait for a free worker included.

    Raises:
        ConfigError: Ray is not installed.
    """

    def __init__(self, *, workplace: Workplace, address: str, workers: int, timeout_s: float) -> None:
        check_installed()
        self._workplace = workplace
        self._address = address
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._work: Any = None
        self._left = threading.Event()
        self.workers = workers

    def run(self, job: Job, *, stop: threading.Event) -> Outcome:
        """See :meth:`Execution.run`.

        Raises:
            ClusterError: the cluster cannot be reached.
        """
        ray = self._connected()
        try:
            running = self._work.remote(self._workplace, job, reef.__version__)
            deadline = time.monotonic() + self._timeout_s
            while not ray.wait([running], timeout=_POLL_S)[0]:
                if stop.is_set() or time.monotonic() >= deadline:
                    self._cancel(running)
                    return _fault("it was not needed any more" if stop.is_set() else f"no worker had ended it after {self._timeout_s:g} s")
            outcome = ray.get(running)
        except (ray.exceptions.RayError, OSError) as error:  # the worker or its machine is gone, or the whole cluster
            return _fault(f"the Ray worker was lost: {type(error).__name__}: {error}")
        if isinstance(outcome, ConfigError):
            raise outcome
        assert isinstance(outcome, Outcome)
        return outcome

    def close(self) -> None:
        """Leave the cluster; end it where it is ours."""
        with self._lock:
            if self._work is not None:
                self._work = None
                _ray().shutdown()
                self._left.set()

    def _connected(self) -> Any:
        ray = _ray()
        with self._lock:
            if self._work is not None and ray.is_initialized():
                return ray
            ready: Future[None] = Future()
            self._left.set()
            self._left = threading.Event()
            threading.Thread(target=self._connect, args=(ready, self._left), name="ray", daemon=True).start()
            try:
                ready.result()
            except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
                raise ClusterError(
                    f"the Ray cluster {self._address or 'of our own'} cannot be used: {error}",
                    hint="`ray status` says whether it is up; HOST:PORT needs a Ray node on this machine, ray://HOST:10001 does not.",
                ) from error
            self._work = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(work)
            return ray

    def _connect(self, ready: Future[None], left: threading.Event) -> None:
        """Connect, and stay until it is left: Linux ends what Ray starts with the thread that started it, and those of trials come and go.
        Another thread than the main one, moreover, because there Ray would take SIGTERM over."""
        own: dict[str, Any] = {}
        if not self._address:
            own = {"num_cpus": self.workers, "object_store_memory": _STORE_BYTES, "_node_ip_address": _OWN_ADDRESS}
            own["include_dashboard"] = False
        try:
            _ray().init(self._address or "local", log_to_driver=False, configure_logging=False, ignore_reinit_error=True, **own)
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            ready.set_exception(error)
            return
        ready.set_result(None)
        left.wait()

    def _cancel(self, running: Any) -> None:
        ray = _ray()
        ray.cancel(running, force=False)  # an exception in the worker: it ends the agent and clears up
        if not ray.wait([running], timeout=_CANCEL_S)[0]:
            ray.cancel(running, force=True)


def work(workplace: Workplace, job: Job, version: str) -> Outcome | ConfigError:
    """What a worker does: set itself up, then the trial. An error of the grader's is handed back, to be raised where it matters."""
    where = f"{socket.gethostname()}/{_ray().get_runtime_context().get_node_id()[:12]}/{os.getpid()}"
    if version != reef.__version__:
        return _fault(f"the Ray worker on {where} has Reef {reef.__version__}, and the learner {version}")
    try:
        tools = _opened(workplace)
        grader = grader_for(job.task, model=tools.model_for(job.scenario))
        return replace(attempt(job, runner=tools.runner, grader=grader), where=where)
    except ConfigError as error:
        return error
    except ReefError as error:
        return _fault(f"{error.message} (Ray worker on {where})")


def check_installed() -> None:
    """See that Ray is there.

    Raises:
        ConfigError: it is not.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("execution.backend is ray, and Ray is not installed", hint="pip install 'reef[ray]'")


@functools.lru_cache(maxsize=8)
def _opened(workplace: Workplace) -> Tools:
    return workplace.open()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reads this when it is imported
    import ray

    return ray


def _fault(detail: str) -> Outcome:
    return Outcome(TrialEnd.INFRASTRUCTURE_FAULT, 0.0, detail)
