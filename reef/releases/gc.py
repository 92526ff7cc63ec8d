"""Letting go of what nobody needs: the bytes of candidates that came to nothing, and objects that nothing points at.

Kept are all releases, for ever, so a client may run any of them; candidates that are not at their end; those that are, for a grace period;
and whatever was written lately, since it may belong to somebody who is about to publish it. The database says first what goes, then refs
go, then objects: a crash in between leaves too much, never too little, and the next run takes it. Rows stay: what was tried and what
the gate said is history.
"""

from __future__ import annotations

import datetime
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from reef.artifacts import lfs
from reef.artifacts.reading import ObjectReader
from reef.artifacts.repository import ArtifactRepository, full_ref
from reef.artifacts.tree import LargeFile
from reef.failpoints import reach
from reef.releases import mirror, schema
from reef.releases.publishing import writing
from reef.releases.store import ReleaseStore
from reef.types import Candidate, CandidateState

DAY_S = 86_400.0
YOUNG_S = 3_600.0
"""What is younger is in somebody's hands, whatever the grace period."""
GIT_GC_TIMEOUT_S = 3_600.0

_DROPPED_STATES = (CandidateState.REJECTED, CandidateState.INCONCLUSIVE, CandidateState.ABANDONED)
_POINTER_BYTES = range(100, 200)


@dataclass(frozen=True, slots=True)
class Collected:
    """What a run let go of, or would."""

    candidates: tuple[str, ...]
    branches: tuple[str, ...]
    large_files: int
    large_bytes: int


def collect(store: ReleaseStore, *, grace_s: float, dry: bool = False, now: float | None = None) -> Collected:
    """One run. It may run beside everything else.

    Args:
        grace_s: how long a candidate's bytes are kept after its end.
        dry: let go of nothing.
        now: Unix seconds.
    """
    artifacts, now = store.artifacts, time.time() if now is None else now
    old, young = now - grace_s, now - max(grace_s, YOUNG_S)
    everyone = [candidate for scenario in store.scenarios() for candidate in store.candidates(scenario)]
    ended = _ended(store, before=old)
    if not dry:
        _mark(store, before=old, now=now)
        reach("gc.committed")
        artifacts.prune()
        chains = list(store.scenarios())
        kept = [candidate for scenario in chains for candidate in store.candidates(scenario)]
        mirror.repair(artifacts, chains=lambda: (store.releases(scenario) for scenario in chains), candidates=kept)
        everyone = kept
    branches = _branches(artifacts, everyone, dropped=ended, before=young)
    if not dry:
        artifacts.delete_refs(branches)
        reach("gc.refs")
        expire = datetime.datetime.fromtimestamp(young, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        artifacts.run("gc", "--quiet", f"--prune={expire}", timeout_s=GIT_GC_TIMEOUT_S)
        reach("gc.objects")
    files = _large(artifacts, before=young, without=tuple(branches) if dry else None)
    size_bytes = sum(file.stat().st_size for file in files)
    if not dry:
        for file in files:
            file.unlink(missing_ok=True)
            reach("gc.large")
        for folder in artifacts.large.unfinished():
            if folder.stat().st_mtime < now - DAY_S:
                shutil.rmtree(folder, ignore_errors=True)
    return Collected(tuple(ended), tuple(branches), len(files), size_bytes)


def _ended(store: ReleaseStore, *, before: float) -> list[str]:
    with store.engine.connect() as connection:
        return list(connection.execute(sa.select(schema.candidates.c.id).where(_gone(before))).scalars())


def _gone(before: float) -> sa.ColumnElement[bool]:
    table = schema.candidates
    return sa.and_(table.c.state.in_(_DROPPED_STATES), table.c.state_at < before, table.c.dropped_at.is_(None))


def _mark(store: ReleaseStore, *, before: float, now: float) -> None:
    with writing(store.engine) as tx:
        tx.execute(schema.candidates.update().where(_gone(before)).values(dropped_at=now))
        reach("gc.marked")


def _branches(artifacts: ArtifactRepository, candidates: list[Candidate], *, dropped: list[str], before: float) -> dict[str, str]:
    """Branches to delete, with where they are: of dropped candidates, where nobody went on with them, and of proposals that became none."""
    of = {full_ref(candidate.branch): candidate for candidate in candidates}
    names = set(dropped)
    found = {}
    form = "--format=%(refname) %(objectname) %(committerdate:unix) %(worktreepath)"
    for line in artifacts.run("for-each-ref", form, "refs/heads/candidates/").decode().splitlines():
        ref, commit, at, at_work = line.split(" ", 3)
        candidate = of.get(ref)
        if at_work:  # somebody is writing it right now; it starts at a commit that may be old
            continue
        if candidate is None:
            wanted = float(at or 0) >= before
        else:
            wanted = candidate.commit != commit or (candidate.dropped_at is None and candidate.id not in names)
        if not wanted:
            found[ref] = commit
    return found


def _large(artifacts: ArtifactRepository, *, before: float, without: tuple[str, ...] | None) -> list[Path]:
    """Large files that no object in git is the pointer of. What was linked to lately is younger than what it was made from: see ctime."""
    files = [file for file in artifacts.large.all() if file.stat().st_ctime < before]
    if not files:
        return []
    needed = {file.sha256 for file in _pointers(artifacts, without=without)}
    return [file for file in files if file.name not in needed]


def _pointers(artifacts: ArtifactRepository, *, without: tuple[str, ...] | None) -> list[LargeFile]:
    """Every pointer in git; with ``without``, only those that the other refs lead to."""
    form = "--batch-check=%(objectname) %(objecttype) %(objectsize)"
    if without is not None:
        commits = "".join(f"{commit}\n" for ref, commit in artifacts.refs().items() if ref not in without)
        reachable = artifacts.run(
            "rev-list", "--objects", "--no-object-names", "--stdin", stdin=commits.encode(), timeout_s=GIT_GC_TIMEOUT_S
        )
        listing = artifacts.run("cat-file", form, stdin=reachable, timeout_s=GIT_GC_TIMEOUT_S)
    else:
        listing = artifacts.run("cat-file", "--batch-all-objects", "--unordered", form, timeout_s=GIT_GC_TIMEOUT_S)
    found = []
    with ObjectReader(artifacts) as reader:
        for line in listing.decode().splitlines():
            identifier, kind, size = line.split(" ")
            if kind == "blob" and int(size) in _POINTER_BYTES:
                file = lfs.file_of(reader.get(identifier)[1], executable=False)
                if isinstance(file, LargeFile):
                    found.append(file)
    return found
