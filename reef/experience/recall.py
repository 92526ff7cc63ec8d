"""What the storing process looks up: sessions that another process stored, or that it has forgotten."""

from __future__ import annotations

import sqlalchemy as sa

from reef.experience import jsontext, schema
from reef.experience.ids import fingerprint
from reef.experience.reader import ContentGone, Reader
from reef.experience.structure import Stored, open_until
from reef.experience.threads import Thread
from reef.types import End

NEWEST = 4
"""Records of a session that are read; the histories of its threads are longest in the newest."""
NEWEST_OF_OPENING = 8
"""Records that are read of those that began alike: more than one session may, and be under way."""
_records = schema.records


def threads(tx: sa.Connection, scenario: str, session: str) -> list[Thread]:
    """The threads of a session by its newest records that have their content, the newest last."""
    query = sa.select(*Reader.COLUMNS, _records.c.depth)
    query = query.where(_records.c.scenario == scenario, _records.c.session == session, _records.c.gone_at.is_(None))
    rows = tx.execute(query.order_by(_records.c.seq.desc()).limit(NEWEST)).all()
    reader = Reader(tx)
    reader.add(rows)
    found = []
    for row in reversed(rows):
        try:
            conversation = reader.conversation(row.id)
        except ContentGone:  # since the query
            continue
        names = [fingerprint(jsontext.dumps(turn)) for turn in (*conversation.prompt, *(conversation.answer or ()))]
        found.append(Thread(row.id, depth=row.depth, names=names, tokens=conversation.tokens))
    return found


def opening(tx: sa.Connection, name: bytes) -> list[Stored]:
    """The newest exchanges whose session was found by structure and began like this, the newest last."""
    query = sa.select(*Reader.COLUMNS, _records.c.session, _records.c.end, _records.c.started_at)
    rows = tx.execute(query.where(_records.c.opening == name).order_by(_records.c.seq.desc()).limit(NEWEST_OF_OPENING)).all()
    reader = Reader(tx)
    reader.add(rows)
    try:
        return [Stored(row.session, open_until(End(row.end), row.started_at), reader.conversation(row.id)) for row in reversed(rows)]
    except ContentGone:  # since the query: a session that nobody came back to for long is not looked for twice
        return []
