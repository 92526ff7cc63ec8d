"""Collects blobs that no record uses any more.

Which those are is found by reading the log, but only for blobs that are *loose*: a record that used them lost its content. So a sweep costs
nothing where nothing was dropped, and does not need a count or an index kept by whoever stores.

A process that stores believes of a blob that it is there, and refers to it without looking, for :data:`reef.experience.rows.TOUCH_S` (10
minutes) after it *touched* it: stored it, or set its ``touched_at``. A blob is collected only if it was not touched in the
:data:`UNTOUCHED_S` (an hour) before the sweep began. Say a record that refers to it is stored after the sweep read the log, and is thus not
seen by it. Then the blob was touched at most 10 minutes, and the length of one transaction, before that: after the hour began. Either the
touch is seen by the statement that collects, and the blob stays; or the touch comes after it, finds nothing, and stores the blob again.
Clocks of several machines may differ by up to 49 minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from reef import failpoints
from reef.experience import schema
from reef.experience.database import write

UNTOUCHED_S = 3600.0
MOST_BLOBS = 20_000
"""Looked for in one sweep: a few megabytes of names."""
PAGE = 2000
AT_ONCE = 50
"""Blobs deleted in one transaction."""
PAUSE_S = 0.01
_records, _blobs = schema.records, schema.blobs


def sweep(engine: sa.Engine, *, wait: Callable[[float], Any]) -> int:
    """Delete what is loose and unused; how many.

    Args:
        wait: waits so many seconds; true if it is time to stop.
    """
    before = time.time() - UNTOUCHED_S
    query = sa.select(_blobs.c.digest).where(_blobs.c.loose, _blobs.c.touched_at < before).order_by(_blobs.c.touched_at)
    with engine.connect() as tx:
        loose = {bytes(name) for name in tx.execute(query.limit(MOST_BLOBS)).scalars()}
    if not loose:
        return 0
    used = _used(engine, loose, wait=wait)
    if used is None:
        return 0
    for names in _held(engine, used, before=before, wait=wait):  # they stay loose: this is looked at again in an hour
        names.tx.execute(_blobs.update().where(_blobs.c.digest.in_(names.found)).values(touched_at=time.time()))
    collected = 0
    for names in _held(engine, loose - used, before=before, wait=wait):
        names.tx.execute(_blobs.delete().where(_blobs.c.digest.in_(names.found)))
        failpoints.reach("retention.sweeping")
        collected += len(names.found)
    return collected


class _Held(NamedTuple):
    """Blobs that nobody else may touch until the transaction ends."""

    tx: sa.Connection
    found: list[bytes]


def _held(engine: sa.Engine, names: set[bytes], *, before: float, wait: Callable[[float], Any]) -> Iterator[_Held]:
    """A few at a time, those that were not touched meanwhile; locked in the order in which whoever stores touches them."""
    ordered = sorted(names)
    for start in range(0, len(ordered), AT_ONCE):
        query = sa.select(_blobs.c.digest).where(_blobs.c.digest.in_(ordered[start : start + AT_ONCE]), _blobs.c.touched_at < before)
        with write(engine).begin() as tx:
            yield _Held(tx, [bytes(name) for name in tx.execute(query.order_by(_blobs.c.digest).with_for_update()).scalars()])
        if wait(PAUSE_S):
            return


def _used(engine: sa.Engine, loose: set[bytes], *, wait: Callable[[float], Any]) -> set[bytes] | None:
    """Those that records use, newest records first: what many share is found soon. None if it was time to stop."""
    used: set[bytes] = set()
    query = sa.select(_records.c.seq, _records.c.system, _records.c.request_envelope).where(_records.c.gone_at.is_(None))
    query = query.order_by(_records.c.seq.desc()).limit(PAGE)
    last: int | None = None
    while len(used) < len(loose):
        with engine.connect() as tx:
            rows = tx.execute(query if last is None else query.where(_records.c.seq < last)).all()
        for row in rows:
            used.update({bytes(name) for name in (row.system, row.request_envelope) if name} & loose)
        if len(rows) < PAGE:
            return used
        last = rows[-1].seq
        if wait(PAUSE_S):
            return None
    return used
