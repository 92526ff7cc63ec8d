"""One exchange taken apart into rows: turns, envelopes, and the record that points at them.

An envelope is the request or response without its turns, a placeholder standing where they were, so that the whole goes together again
with its keys in order. The place is filled exactly where the record has a prompt (or answer) node; a body without turns is kept whole in
its envelope. Where the turns stand is told by the record's dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import zstandard

from reef import redaction
from reef.experience import dialects, jsontext
from reef.experience.ids import digest
from reef.experience.turns import ROOT, Known, Turn, grow
from reef.types import Record

Row = tuple[Any, ...]

BLOB_COLUMNS = ("digest", "data")
NODE_COLUMNS = ("id", "parent", "canonical", "depth", "body")
RECORD_COLUMNS = (
    "id", "scenario", "session", "release", "origin", "dialect", "upstream", "model", "end", "status", "streamed", "prompt", "answer",
    "request_envelope", "response_envelope", "prompt_tokens", "completion_tokens", "started_at", "first_byte_ms", "duration_ms", "error",
)  # fmt: skip


RESPONSE = RECORD_COLUMNS.index("response_envelope")


@dataclass(slots=True)
class Rows:
    """What one batch adds to the tables."""

    blobs: dict[bytes, bytes] = field(default_factory=dict)
    """By digest; compressed when the batch is complete."""
    nodes: dict[bytes, Row] = field(default_factory=dict)
    records: list[list[Any]] = field(default_factory=list)


class Dismantler:
    """Turns records into rows, leaving out what is known to be stored.

    What a batch adds counts as known only after :meth:`committed`: a batch that could not be stored is forgotten.

    Args:
        remember: how many nodes, and how many blobs, are remembered as stored.
        redact: take secrets out of what is stored. Names stay those of what was sent, so that it is recognised when it comes again,
            without another look.
    """

    def __init__(self, *, remember: int = 50_000, redact: bool = True) -> None:
        self._redact = redaction.redact if redact else bytes
        self._compressor = zstandard.ZstdCompressor(level=3)
        self._nodes = Known(size=remember)
        self._blobs = Known(size=remember)

    def rows(self, records: Sequence[Record]) -> Rows:
        """Take a batch apart."""
        rows = Rows()
        for record in records:
            self._add(record, rows)
        self._compress(rows)
        return rows

    def committed(self, rows: Rows) -> None:
        """Remember what a batch stored."""
        for node, row in rows.nodes.items():
            self._nodes.add(node, row[2])
        for name in rows.blobs:
            self._blobs.add(name, b"")

    def _add(self, record: Record, rows: Rows) -> None:
        request, response = record.request, record.response
        leaf, canonical, depth = None, ROOT, 0
        dialect = dialects.named(record.dialect)
        if (prompt := dialect.take_prompt(request)) is not None:
            turns, request = prompt
            leaf, canonical, depth, fresh = grow(turns, known=self._nodes)
            self._add_turns(fresh, rows)
        answer = None
        if (answered := dialect.take_answer(response)) is not None:
            turns, response = answered
            answer, _, _, fresh = grow(turns, known=self._nodes, parent=leaf or ROOT, canonical=canonical, depth=depth)
            self._add_turns(fresh, rows)
        envelope = jsontext.dumps(request)
        name = digest(envelope)
        self._add_blob(name, envelope, rows)
        usage = record.usage
        rows.records.append(
            [
                record.id,
                record.scenario,
                record.session,
                record.release,
                record.origin.value,
                record.dialect,
                record.upstream,
                self._clean(record.model),
                record.end.value,
                record.status,
                record.streamed,
                leaf,
                answer,
                name,
                None if response is None else jsontext.dumps(response),
                usage.get("prompt_tokens"),
                usage.get("completion_tokens"),
                record.started_at,
                record.first_byte_ms,
                record.duration_ms,
                self._clean(record.error),
            ]
        )

    def _clean(self, text: str) -> str:
        return self._redact(text.encode()).decode() if text else text

    def _compress(self, rows: Rows) -> None:
        """Compress a batch in one call: each call gives the interpreter's lock away, and to get it back may take longer than the work."""
        answered = [row for row in rows.records if row[RESPONSE] is not None]
        texts: list[Any] = [self._redact(text) for text in (*rows.blobs.values(), *(row[RESPONSE] for row in answered))]
        if not texts:
            return
        compressed = self._compressor.multi_compress_to_buffer(texts)
        for place, name in enumerate(rows.blobs):
            rows.blobs[name] = compressed[place].tobytes()
        for place, row in enumerate(answered, start=len(rows.blobs)):
            row[RESPONSE] = compressed[place].tobytes()

    def _add_turns(self, turns: list[Turn], rows: Rows) -> None:
        for turn in turns:
            if turn.id not in rows.nodes:
                rows.nodes[turn.id] = (turn.id, turn.parent or None, turn.canonical, turn.depth, turn.body_digest)
                self._add_blob(turn.body_digest, turn.body, rows)

    def _add_blob(self, name: bytes, data: bytes, rows: Rows) -> None:
        if name not in rows.blobs and self._blobs.get(name) is None:
            rows.blobs[name] = data
