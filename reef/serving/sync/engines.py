"""What a sync asks of an engine, and how several engines are asked at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

from reef.errors import ReefError, WeightSyncError, WeightSyncTimeout
from reef.serving.engine.client import EngineClient as Engine

Result = TypeVar("Result")


class Deadline:
    """Counts down over the steps of one call."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left; never less than a little, so that the step itself says that there was no time."""
        return max(0.05, self._until - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether nothing is left."""
        return time.monotonic() >= self._until


def rpc(engine: Engine, method: str, *, timeout_s: float, **arguments: str) -> list[dict[str, Any]]:
    """Call a method on all workers of an engine; what each of them gave."""
    # Not by its collective_rpc, which waits longer than it is told: here a deadline is one, and an engine of one worker heeds no time-out.
    results = engine.ask("POST", "/collective_rpc", {"method": method, "kwargs": arguments}, timeout_s=timeout_s).get("results")
    return results if isinstance(results, list) else []


def at_once(engines: Sequence[Engine], call: Callable[[Engine], Result], *, what: str, deadline: Deadline) -> list[Result]:
    """Do the same with every engine, in parallel; the results in their order.

    Raises:
        WeightSyncError: some engine could not; the message names every one that failed.
        WeightSyncTimeout: some engine did not answer in time, and the others could.
    """
    if len(engines) == 1:
        return [_one(engines[0], call, what=what)]
    pool = ThreadPoolExecutor(len(engines), thread_name_prefix="reef-sync")
    try:
        futures = [pool.submit(_one, engine, call, what=what) for engine in engines]
        wait_for(futures, timeout=deadline.left() + 1.0)  # each call has a time-out of its own: this is for one that has not
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    problems = [_problem(engine, future, what=what) for engine, future in zip(engines, futures, strict=True)]
    found = [problem for problem in problems if problem is not None]
    if found:
        kind = WeightSyncTimeout if all(isinstance(problem, WeightSyncTimeout) for problem in found) else WeightSyncError
        raise kind("; ".join(problem.message for problem in found), hint=found[0].hint)
    return [future.result() for future in futures]


def _one(engine: Engine, call: Callable[[Engine], Result], *, what: str) -> Result:
    try:
        return call(engine)
    except WeightSyncError:
        raise
    except TimeoutError as error:
        raise WeightSyncTimeout(f"{engine.url} did not answer: {what}", hint="See `reef status` and the engine's log.") from error
    except ReefError as error:
        raise WeightSyncError(f"{engine.url} failed to {what}: {error.message}", hint=error.hint) from error


def _problem(engine: Engine, future: Future[Any], *, what: str) -> WeightSyncError | None:
    if not future.done():
        return WeightSyncTimeout(f"{engine.url} did not answer: {what}")
    error = future.exception()
    if error is None:
        return None
    return error if isinstance(error, WeightSyncError) else WeightSyncError(f"{engine.url} failed to {what}: {error}")
