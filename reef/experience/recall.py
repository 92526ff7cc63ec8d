"""What the storing process looks up: sessions that another process stored, or that it has forgotten."""

from __future__ import annotations

import sqlalchemy as sa

from reef.experience import jsontext, schema
from reef.experience.ids import digest
from reef.experience.reader import Conversation, Reader
from reef.experience.threads import Thread

NEWEST = 4
"""Records of a session that are read; the histories of its threads are longest in the newest."""
_records = schema.records

Found = tuple[str, list[Conversation]]


def threads(tx: sa.Connection, scenario: str, session: str) -> list[Thread]:
    """The threads of a session by its newest records, the newest last."""
    query = sa.select(_records.c.id, _records.c.base, _records.c.delta, _records.c.depth)
    query = query.where(_records.c.scenario == scenario, _records.c.session == session).order_by(_records.c.seq.desc()).limit(NEWEST)
    rows = tx.execute(query).all()
    reader = Reader(tx)
    reader.add(rows)
    found = []
    for row in reversed(rows):
        conversation = reader.conversation(row.id)
        names = [digest(jsontext.dumps(turn)) for turn in (*conversation.prompt, *(conversation.answer or ()))]
        found.append(Thread(row.id, depth=row.depth, names=names))
    return found


def opening(tx: sa.Connection, name: bytes) -> Found | None:
    """The newest session that was found by structure and began like this, with its newest exchanges."""
    query = sa.select(_records.c.id, _records.c.scenario, _records.c.session).where(_records.c.opening == name)
    newest = tx.execute(query.order_by(_records.c.seq.desc()).limit(1)).first()
    if newest is None:
        return None
    query = sa.select(_records.c.id, _records.c.base, _records.c.delta)
    query = query.where(_records.c.scenario == newest.scenario, _records.c.session == newest.session)
    rows = tx.execute(query.order_by(_records.c.seq.desc()).limit(NEWEST)).all()
    reader = Reader(tx)
    reader.add(rows)
    return newest.session, [reader.conversation(row.id) for row in reversed(rows)]
