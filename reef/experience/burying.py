"""Tombstones from elsewhere taken in: slim rows of records whose content was dropped before they came here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from reef import redaction
from reef.experience import schema, usage
from reef.experience.database import write
from reef.experience.tombstones import EMPTIED, KEPT, Digester
from reef.types import Record

_COUNTED = ("prompt_tokens", "completion_tokens")
"""Of a record with its content these are in its usage."""
_SAID = tuple(column.name for column in KEPT if column.name not in ("id", "gone_at", "content_digest"))


def bury(engine: sa.Engine, rows: Sequence[Mapping[str, Any]], *, redact: bool) -> set[str]:
    """Store tombstones in one transaction, in their order; the ids of those that were there already, as whatever.

    Args:
        rows: :meth:`reef.experience.lines.TombstoneLine.row` of each.
        redact: take secrets out of the texts that clients and upstreams chose.
    """
    insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
    statement = insert(schema.records).on_conflict_do_nothing(index_elements=["id"])
    there: set[str] = set()
    stored: dict[str, int] = {}
    with write(engine).begin() as tx:
        for row in rows:
            values = {**row, **EMPTIED, **({name: _clean(row[name]) for name in ("model", "error")} if redact else {})}
            if tx.execute(statement, values).rowcount:
                stored[row["scenario"]] = stored.get(row["scenario"], 0) + 1
            else:
                there.add(row["id"])
        for scenario in sorted(stored):
            usage.add(tx, scenario, {"dropped": stored[scenario]})
    return there


def differs(row: Mapping[str, Any], found: Record | Mapping[str, Any], *, redact: bool) -> str:
    """In what a tombstone says something else than the record, or the tombstone, of the same id; empty where in nothing.

    When the content was dropped is no part of it: two stores that held a record drop it each in its time.
    """
    if isinstance(found, Record):
        if Digester().content(found) != row["content_digest"]:
            return "content"
        there = {name: getattr(found, name) for name in _SAID if name not in _COUNTED}
    else:
        if bytes(found["content_digest"]) != row["content_digest"]:
            return "content"
        there = {name: found[name] for name in _SAID}
    for name, old in there.items():
        new = row[name]
        if name == "session" and new is None:
            continue
        if new != old and not (redact and isinstance(new, str) and isinstance(old, str) and _clean(new) == _clean(old)):
            return name
    return ""


def _clean(text: str) -> str:
    return redaction.redact(text.encode()).decode()
