"""Answers looks at the sealed tasks, between two steps of learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from reef.errors import ReefError
from reef.learner.loop import Activity
from reef.releases import sealed
from reef.releases.store import ReleaseStore
from reef.types import Release, Verdict

log = structlog.get_logger()


class Measure(Protocol):
    """Compares two releases on the sealed tasks, as :meth:`reef.learner.harness_judge.HarnessJudge.measure` does."""

    def __call__(self, look: sealed.Look, *, release: Release, against: Release, progress: Callable[[str], None]) -> Verdict: ...


class SealedLooks:
    """Takes one look after the other.

    Args:
        measure: runs the pairs.
        tell: gets every change of activity.
    """

    def __init__(self, store: ReleaseStore, *, measure: Measure, tell: Callable[[Activity], None]) -> None:
        self._store = store
        self._measure = measure
        self._tell = tell

    def work_once(self) -> bool:
        """Answer the oldest look that waits, if one does. What cannot be measured is answered with the reason: its asker may ask again."""
        look = sealed.waiting(self._store)
        if look is None:
            return False

        def progress(detail: str) -> None:
            self._tell(Activity(look.scenario, "measuring", f"release {look.step} against {look.against} on sealed tasks: {detail}"))

        try:
            progress("starting")
            release, against = (self._store.release(look.scenario, step) for step in (look.step, look.against))
            verdict = self._measure(look, release=release, against=against, progress=progress)
        except ReefError as error:
            log.warning("nothing was measured", look=look.id, error=error.message)
            sealed.answer(self._store, look, error=f"{error.message} {error.hint}".strip())
        except Exception as error:  # a bug: it is not to come back with every restart
            sealed.answer(self._store, look, error=f"{type(error).__name__}: {error}")
            raise
        else:
            nothing = "" if verdict.pairs else verdict.reason
            sealed.answer(self._store, look, verdict=verdict, error=nothing)
            log.info("measured", look=look.id, effect=verdict.effect, low=verdict.low, high=verdict.high, pairs=verdict.pairs)
        self._tell(Activity(look.scenario, "idle"))
        return True
