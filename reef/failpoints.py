"""A test instrument: named points at which a process can be made to die as by SIGKILL, to see that what it leaves behind is sound.

Every place where bytes become lasting has one just before and one just after. They do nothing unless the environment variable
REEF_FAILPOINT names one, `experience.inserted`, or `experience.inserted:3` for the third time that a process passes it. A process that is
started again with the same environment dies there again. Never set it where somebody's work is served.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal

VARIABLE = "REEF_FAILPOINT"

POINTS = {
    "experience.received": "the keeper has a batch",
    "experience.rows": "a batch is taken apart, nothing of it is written",
    "experience.inserted": "a batch is written, not committed",
    "experience.committed": "a batch is committed, nobody was told",
    "experience.answered": "the keeper has told the gateway",
    "experience.told": "the gateway was told by the keeper, no caller was",
    "report.half": "a report is written without the receipts it quotes, not committed",
    "report.inserted": "a report is written, not committed",
    "session.inserted": "a session is registered, not committed",
    "other.committed": "a report or a session is committed, its caller was not told",
    "import.sessions.inserted": "the sessions of a batch import are written, not committed",
    "import.sessions.committed": "the sessions of a batch import are committed",
    "import.records": "a part of the records of a batch import is stored, perhaps all",
    "import.report": "a report of a batch import is stored, perhaps not the last",
    "retention.slimmed": "records lost their content and the sums are changed, not committed",
    "retention.dropped": "records lost their content, committed",
    "retention.counted": "the sums of what a scenario holds are changed, not committed",
    "retention.sweeping": "blobs that nothing uses are deleted, not committed",
    "lfs.hashed": "a large file is read, not in its place",
    "lfs.placed": "a large file is in its place, nothing points at it",
    "checkpoint.written": "a checkpoint is written beside its place",
    "checkpoint.placed": "a checkpoint is in its place, nobody was told",
    "candidate.inserted": "a candidate is written, not committed",
    "candidate.committed": "a candidate is committed, its branch may be missing",
    "candidate.moved": "a candidate's state is changed, not committed",
    "candidate.settled": "a candidate came to its end without a release, committed",
    "settle.verdict": "a verdict and its trials are written, not committed",
    "settle.consumed": "reports are consumed, not committed",
    "settle.state": "a recipe's state is written, not committed",
    "release.stored": "the commit of a release is stored, nothing points at it",
    "release.inserted": "a release is written and the head moved, not committed",
    "release.committed": "a release is committed, no ref points at it",
    "release.refs": "branch and tag follow a release",
    "gc.marked": "candidates are marked as dropped, not committed",
    "gc.committed": "candidates are marked as dropped, committed",
    "gc.refs": "the branches of dropped candidates are deleted, their objects are not",
    "gc.objects": "git objects that nothing needs are deleted",
    "gc.large": "a large file that nothing needs is deleted, perhaps not the last",
}
"""Every point there is, and how things stand there."""


class _Armed:
    """One point at which this process ends."""

    def __init__(self, text: str) -> None:
        self.name, _, nth = text.partition(":")
        if self.name not in POINTS:
            raise ValueError(f"{VARIABLE} names {self.name!r}, and there is no such point; there are {', '.join(POINTS)}")
        self._passes = itertools.count(1)
        self._last = int(nth or 1)

    def passed(self) -> None:
        if next(self._passes) >= self._last:
            with contextlib.suppress(OSError):
                os.write(2, f"{VARIABLE}: killed at {self.name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


_armed = _Armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def reach(name: str) -> None:
    """Say that a point is passed. One check of a global where none is armed: it may stand in hot paths."""
    if _armed is not None and _armed.name == name:
        _armed.passed()
