"""The commit point: one transaction that writes a release and moves the head, with whatever else belongs to it.

Bytes come before it, refs after it. A crash before it leaves an unused commit, one after it leaves refs that are mended at the next
start; either way the head is the old or the new one, whole.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

import sqlalchemy as sa
import structlog

from reef.errors import ReefError, StorageError
from reef.experience.database import write
from reef.failpoints import reach
from reef.releases import chain, mirror, statements
from reef.releases.store import ReleaseStore
from reef.types import Component, Content, Release

log = structlog.get_logger()


def publish(
    store: ReleaseStore,
    scenario: str,
    *,
    expected_head: int,
    content_id: str,
    commit: str,
    operation: str,
    summary: str,
    component: Component = Component.HARNESS,
    others: Mapping[str, Content],
    recipe: str = "",
    candidate: str | None = None,
    also: Callable[[sa.Connection], None] = lambda _tx: None,
) -> Release:
    """Write a release and move the head, with whatever ``also`` writes, in one transaction; then let the refs follow.

    Raises:
        StaleHead: the head is not at ``expected_head``; nothing was changed.
    """
    reach("release.stored")
    try:
        with writing(store.engine) as tx:
            also(tx)
            previous = statements.head(tx, scenario) if expected_head else None
            if previous is not None and previous.step != expected_head:
                raise statements.stale(scenario, expected=expected_head, actual=previous.step)
            release = chain.seal(
                scenario=scenario,
                step=expected_head + 1,
                content_id=content_id,
                commit=commit,
                operation=operation,
                component=component,
                recipe=recipe,
                candidate=candidate,
                summary=summary,
                previous_hash=previous.hash if previous else chain.GENESIS,
                created_at=time.time(),
                others=dict(sorted(others.items())),
            )
            statements.append(tx, release)
    except sa.exc.IntegrityError as error:
        actual = store.scenarios().get(scenario, 0)
        if actual == expected_head:
            raise
        raise statements.stale(scenario, expected=expected_head, actual=actual) from error  # another publisher wrote this step
    reach("release.committed")
    try:
        mirror.follow(store.artifacts, head=lambda: store.head(scenario), published=release)
    except ReefError as error:  # the release is made; its refs are mended at the next start
        log.warning("refs do not follow", scenario=scenario, step=release.step, error=error.message)
    return release


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction for writing.

    Raises:
        StorageError: the database refused.
    """
    try:
        with write(engine).begin() as tx:
            yield tx
    except sa.exc.OperationalError as error:
        raise StorageError(f"the database refused the change: {error.orig}", hint="Is the disk full, or a writer stuck?") from error
