"""One exchange taken apart into rows: what is the same for many as blobs, what is new as the record's delta.

An envelope is the request or response without its turns, a placeholder standing where they were, so that the whole goes together again
with its keys in order. The place is filled exactly where turns were taken; a body without turns is kept whole in its envelope. Where the
turns stand is told by the record's dialect.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import zstandard

from reef import redaction
from reef.experience import delta, dialects, jsontext, prompts, traces
from reef.experience.ids import digest, fingerprint
from reef.experience.known import Known
from reef.experience.prompts import Prompt, Text
from reef.experience.structure import Recall as RecallOpening
from reef.experience.structure import Structure
from reef.experience.threads import MAX_DEPTH, Sessions, Thread
from reef.types import JSON, Record

BLOB_COLUMNS = ("digest", "data", "touched_at", "loose")
RECORD_COLUMNS = (
    "id", "scenario", "session", "opening", "release", "candidate", "origin", "dialect", "upstream", "model", "end", "status", "streamed",
    "base", "depth", "turns", "system", "request_envelope", "delta", "tokens", "prompt_tokens", "completion_tokens", "started_at",
    "first_byte_ms", "duration_ms", "error",
)  # fmt: skip
DELTA = RECORD_COLUMNS.index("delta")
TOUCH_S = 600.0
"""How long a blob is taken for stored without making sure. Blobs that were touched within an hour are never collected, see
:mod:`reef.experience.sweep`."""
LEVEL_OF_BLOBS, LEVEL_OF_DELTAS = 3, 1
"""Of zstd. A delta comes with each record: level 3 takes 1.4 to 1.8 times as long for it, and saves a few percent."""
MOST_NAMED = 1024
"""How many blobs are remembered by their fingerprints: what the system says and how requests are made comes again and again, and to name
it takes 40 times as long."""

Recall = Callable[[str, str], list[Thread]]
"""Of a scenario and a session: its threads as they are stored, the one with the newest record last."""


@dataclass(slots=True)
class Rows:
    """What one batch adds to the tables."""

    blobs: dict[bytes, bytes] = field(default_factory=dict)
    """By digest; compressed when the batch is complete."""
    records: list[list[Any]] = field(default_factory=list)
    bases: set[str] = field(default_factory=set)
    """Records of earlier batches that these are based on: they must still have their content when these are stored."""


class Dismantler:
    """Turns records into rows, leaving out what is known to be stored.

    A batch that could not be stored must be followed by :meth:`forget`.

    Args:
        recall: looks up a session that is not remembered.
        recall_opening: looks up a session by how it began.
        remember: how many turns, and how many blobs, are remembered as stored.
        redact: take secrets out of what is stored. Names stay those of what was sent, so that it is recognised when it comes again,
            without another look.
    """

    def __init__(self, recall: Recall, recall_opening: RecallOpening, *, remember: int = 50_000, redact: bool = True) -> None:
        self._recall = recall
        self._recall_opening = recall_opening
        self._remember = remember
        self._redacts = redact
        self._clean = functools.lru_cache(maxsize=1024)(self._cleaned)
        self._names: Known[bytes] = Known(size=MOST_NAMED)
        self._compress_blob = zstandard.ZstdCompressor(level=LEVEL_OF_BLOBS).compress
        self._compress_delta = zstandard.ZstdCompressor(level=LEVEL_OF_DELTAS).compress
        self.forget()

    def forget(self) -> None:
        """Forget what is stored; it is looked up again."""
        self._sessions = Sessions(turns=self._remember)
        self._structure = Structure(self._recall_opening, remember=self._remember)
        self._blobs: Known[float] = Known(size=self._remember)
        """When each was touched."""

    def rows(self, records: Sequence[Record], texts: Sequence[Text | None] = ()) -> Rows:
        """Take a batch apart.

        Args:
            records: the exchanges.
            texts: the request of each, where it is a text; or nothing at all.

        Raises:
            ValueError: a text is not JSON.
        """
        rows = Rows()
        self._now = time.monotonic()
        for record, text in zip(records, texts or repeat(None), strict=bool(texts)):
            self._add(record, text, rows)
        rows.bases.difference_update([row[0] for row in rows.records])
        self._compress(rows)
        return rows

    def _add(self, record: Record, text: Text | None, rows: Rows) -> None:
        prompt = self._prompt(record, text, rows)
        response = record.response
        answer: Sequence[JSON] | None = None
        if (answered := prompt.dialect.take_answer(response)) is not None:
            answer, response = answered
        said = [jsontext.dumps(turn) for turn in answer or ()]
        session, opening = record.session, None
        if session is None:
            session, opening = self._structure.session(record, prompt.turns or (), prompt.names, answer or ())
        base, copied = self._place(record, session, prompt.names, said)
        if base is not None:
            rows.bases.add(base.receipt)
        added = [prompt.text(place) for place in delta.added(copied, len(prompt.names))]
        usage = record.usage
        rows.records.append(
            [
                record.id,
                record.scenario,
                session,
                opening,
                record.release,
                record.candidate,
                record.origin.value,
                record.dialect,
                record.upstream,
                self._clean(record.model),
                record.end.value,
                record.status,
                record.streamed,
                None if base is None else base.receipt,
                0 if base is None else base.depth + 1,
                None if prompt.turns is None else len(prompt.turns),
                prompt.system,
                prompt.envelope,
                delta.text(copied, added, None if answer is None else said, jsontext.dumps(response)),
                None if record.tokens is None else traces.pack(record.tokens, base.tokens if base is not None else None),
                usage.get("prompt_tokens"),
                usage.get("completion_tokens"),
                record.started_at,
                record.first_byte_ms,
                record.duration_ms,
                self._clean(record.error),
            ]
        )
        prompt.shrink()

    def _prompt(self, record: Record, text: Text | None, rows: Rows) -> Prompt:
        """Take a request apart, from where it differs from an earlier one if it can be."""
        dialect = dialects.named(record.dialect)
        prompt = prompts.whole(record.request, dialect) if text is None else text.read(dialect)
        if text is not None and prompt.unnamed is None and not all(map(self._is_stored, filter(None, (prompt.system, prompt.envelope)))):
            prompt = prompts.whole(text.parse(), dialect)
        if prompt.unnamed is not None:
            system, envelope = prompt.unnamed
            prompt.system = self._add_blob(system, rows) if system else None
            prompt.envelope = self._add_blob(envelope, rows)
        if text is not None and prompt.turns:
            text.prompt = prompt
        return prompt

    def _place(self, record: Record, session: str, names: list[bytes], said: Sequence[bytes]) -> tuple[Thread | None, Sequence[delta.Copy]]:
        """Find a record's base among the threads of its session, and make it the newest of its thread."""
        known = self._sessions.get(record.scenario, session)
        if known is None:
            known = self._sessions.new(record.scenario, session, self._recall(record.scenario, session))
        base = carried_on = None
        copied: Sequence[delta.Copy] = ()
        if (nearest := known.nearest(names)) is not None:
            thread = nearest.thread
            if nearest.begun == len(thread.names):
                names[: nearest.begun] = thread.names  # equal, and held once
            if thread.depth < MAX_DEPTH:
                base, copied = thread, nearest.copies
            if 2 * nearest.shared >= len(thread.names):
                carried_on = thread
        names = names + [fingerprint(text) for text in said]
        depth = 0 if base is None else base.depth + 1
        known.add(Thread(record.id, depth=depth, names=names, tokens=record.tokens), after=carried_on)
        for forgotten in self._sessions.grew(known):
            self._structure.forget(forgotten.names)
        return base, copied

    def _cleaned(self, text: str) -> str:
        """Of the names and errors that one record has from the other."""
        return redaction.redact(text.encode()).decode() if text and self._redacts else text

    def _compress(self, rows: Rows) -> None:
        """Take the secrets out of a batch, and compress it."""
        written = [*rows.blobs.values(), *(row[DELTA] for row in rows.records)]
        texts = iter(redaction.redact_all(written) if self._redacts else written)
        for name in rows.blobs:
            rows.blobs[name] = self._compress_blob(next(texts))
        for row in rows.records:
            row[DELTA] = self._compress_delta(next(texts))

    def _add_blob(self, text: bytes, rows: Rows) -> bytes:
        known_by = fingerprint(text)
        name = self._names.get(known_by)
        if name is None:
            name = digest(text)
            self._names.add(known_by, name)
        if not self._is_stored(name):
            self._blobs.add(name, self._now)
            rows.blobs[name] = text
        return name

    def _is_stored(self, name: bytes) -> bool:
        """Whether a blob is known to be there, and was touched not long ago."""
        touched = self._blobs.get(name)
        return touched is not None and self._now - touched <= TOUCH_S
