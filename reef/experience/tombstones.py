"""What stays of a record when retention drops its content: a slim row, by which retries, reports and audits still work.

Gone are request, response and tokens. Who, when, how it ended, how many tokens, what it was made with and in which session is kept, and a
digest of request and response: the same exchange imported again is known to have been here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import RowMapping

from reef.errors import Gone
from reef.experience import dialects, jsontext, schema
from reef.experience.ids import digest
from reef.redaction import redact
from reef.types import JSON, Record

_records = schema.records

KEPT = tuple(
    _records.c[name]
    for name in (
        "id", "scenario", "session", "release", "candidate", "origin", "dialect", "upstream", "model", "end", "status", "streamed",
        "prompt_tokens", "completion_tokens", "started_at", "first_byte_ms", "duration_ms", "error", "gone_at", "content_digest",
    )
)  # fmt: skip
EMPTIED = {
    "base": None,
    "opening": None,
    "depth": 0,
    "turns": None,
    "system": None,
    "request_envelope": b"",
    "delta": b"",
    "tokens": None,
}
"""What the other columns hold then."""
CONTENT = {"request", "response", "tokens"}
"""The fields of a record that are gone."""
BYTES = sa.func.length(_records.c.delta) + sa.func.coalesce(sa.func.length(_records.c.tokens), 0)
"""What a record holds for itself. The database has the lengths at hand: neither reads the content for it."""


class Digester:
    """Digests of what exchanges held. One for records that come from one reader: the turns they share are digested once.

    What is redacted before a record is stored is redacted here too: a record that was stored, and the same as it was sent, are alike.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[JSON, bytes]] = {}
        """By identity; with the value, so that no other one gets its identity."""

    def content(self, record: Record) -> bytes:
        """The digest of a record's request and response."""
        dialect = dialects.named(record.dialect)
        parts = []
        for taken, whole in (
            (dialect.take_prompt(record.request), record.request),
            (dialect.take_answer(record.response), record.response),
        ):
            turns, envelope = taken if taken is not None else ((), whole)
            parts.append(b"%d" % len(turns))
            parts += map(self._turn, turns)
            parts.append(_digest(envelope))
        return digest(b" ".join(parts))

    def _turn(self, turn: JSON) -> bytes:
        known = self._known.get(id(turn))
        if known is None:
            known = self._known[id(turn)] = turn, _digest(turn)
        return known[1]


def gone(row: RowMapping) -> Gone:
    """What is said to whoever asks for the content."""
    kept: dict[str, Any] = {**row, "content_digest": bytes(row["content_digest"] or b"").hex(), "streamed": bool(row["streamed"])}
    when = datetime.fromtimestamp(row["gone_at"], UTC).strftime("%Y-%m-%d %H:%M UTC")
    tokens = f"{_said(row['prompt_tokens'])}+{_said(row['completion_tokens'])}"
    what = f"session {row['session']}, release {_said(row['release'])}, model {row['model'] or '–'}, {row['end']}, {tokens} tokens"
    return Gone(
        f"the content of record {row['id']} was dropped by retention on {when}; kept are {what}, digest {kept['content_digest']}",
        hint="Reports that quote it stay valid. `storage.retention` in serve.yaml says how much is kept, and for how long.",
        kept=kept,
    )


def _said(value: object) -> str:
    return "–" if value is None else str(value)


def _digest(value: JSON) -> bytes:
    return digest(redact(jsontext.dumps_sorted(value)))
