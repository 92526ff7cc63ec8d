"""Pins: a client, or all of a scenario's, stays on a release whatever the head is. The chain goes on; the update check honours them."""

from __future__ import annotations

import re
import time

import sqlalchemy as sa

from reef.errors import InvalidRequest, NotFound
from reef.releases import schema
from reef.releases.publishing import writing
from reef.releases.store import ReleaseStore
from reef.types import Release

EVERYBODY = ""
"""The client of a scenario's own pin."""
CLIENT = r"^[A-Za-z0-9._:@-]{0,128}$"
"""What a client may call itself."""


def pin(store: ReleaseStore, scenario: str, step: int, *, client: str = EVERYBODY) -> Release:
    """Have a client stay on a release until it is unpinned. Its own pin goes before that of the scenario.

    Raises:
        NotFound: no such release.
        InvalidRequest: not a name a client may have.
    """
    if not re.fullmatch(CLIENT, client):
        raise InvalidRequest(
            f"{client[:140]!r} cannot name a client", hint="At most 128 of A-Z a-z 0-9 . _ : @ -; `reef-pi status` says its own."
        )
    release = store.release(scenario, step)
    table = schema.pins
    with writing(store.engine) as tx:
        tx.execute(table.delete().where(table.c.scenario == scenario, table.c.client == client))
        tx.execute(table.insert().values(scenario=scenario, client=client, step=step, at=time.time()))
    return release


def unpin(store: ReleaseStore, scenario: str, *, client: str = EVERYBODY) -> None:
    """Have a client follow the head again.

    Raises:
        NotFound: it is not pinned.
    """
    table = schema.pins
    with writing(store.engine) as tx:
        if tx.execute(table.delete().where(table.c.scenario == scenario, table.c.client == client)).rowcount != 1:
            raise NotFound(f"{client or scenario} is not pinned", hint="`reef release pins` lists what is.")


def pins(store: ReleaseStore, scenario: str) -> dict[str, int]:
    """The steps that are pinned, by client."""
    table = schema.pins
    with store.engine.connect() as connection:
        found = connection.execute(sa.select(table.c.client, table.c.step).where(table.c.scenario == scenario).order_by(table.c.client))
        return {row.client: row.step for row in found}


def release_for(store: ReleaseStore, scenario: str, *, client: str = EVERYBODY) -> Release:
    """The release that a client is meant to run: where it is pinned to, or the head.

    Raises:
        NotFound: there is no such scenario.
    """
    table = schema.pins
    query = sa.select(table.c.step).where(table.c.scenario == scenario, table.c.client.in_({client, EVERYBODY}))
    with store.engine.connect() as connection:
        step = connection.execute(query.order_by(table.c.client.desc()).limit(1)).scalar_one_or_none()
    return store.head(scenario) if step is None else store.release(scenario, step)
