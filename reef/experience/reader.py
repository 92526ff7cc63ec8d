"""Puts records together again: base by base, each row and each blob read once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa
import zstandard
from sqlalchemy import RowMapping

from reef.experience import delta, dialects, jsontext, schema, traces
from reef.types import JSON, End, Origin, Record, TokenTrace

_records, _blobs = schema.records, schema.blobs


class Conversation(NamedTuple):
    """The turns of one exchange, without the system's."""

    prompt: list[JSON]
    answer: list[JSON] | None
    """None where the response has no place for turns."""
    response: JSON
    """The response without its turns."""
    tokens: TokenTrace | None


_NOTHING = Conversation([], None, None, None)


class ContentGone(LookupError):
    """Retention dropped the content of a record: in the moment it was to be read, or before."""


class Reader:
    """Reads within one transaction. What comes from one reader shares turns: copy before changing one."""

    COLUMNS = (_records.c.id, _records.c.base, _records.c.delta, _records.c.tokens)
    """What :meth:`add` needs."""

    def __init__(self, tx: sa.Connection) -> None:
        self._tx = tx
        self._deltas: dict[str, tuple[str | None, bytes, bytes | None]] = {}
        """Base, delta and tokens by receipt."""
        self._found: dict[str, Conversation] = {}
        self._decompress = zstandard.ZstdDecompressor().decompress

    def add(self, rows: Iterable[Any]) -> None:
        """Take rows of ``records`` that were read already."""
        self._deltas |= {row.id: (row.base, row.delta, row.tokens) for row in rows}

    def conversation(self, receipt: str) -> Conversation:
        """The turns of one record.

        Raises:
            ContentGone: it was dropped.
            LookupError: it, or one it is based on, is not there.
        """
        path = []
        name: str | None = receipt
        while name is not None and name not in self._found:
            if name not in self._deltas:
                self._read_down(name)
            path.append(name)
            name = self._deltas[name][0]
        for name in reversed(path):
            base, data, packed = self._deltas[name]
            if not data:
                raise ContentGone(name)
            copies, added, answer, response = self._unpack(data)
            below = self._found[base] if base is not None else _NOTHING
            prompt = delta.put_together(copies, added, below.prompt + (below.answer or []))
            tokens = None if packed is None else traces.unpack(packed, below.tokens)
            self._found[name] = Conversation(prompt, answer, response, tokens)
        return self._found[receipt]

    def record(self, row: RowMapping) -> Record:
        """A record from its row."""
        conversation = self.conversation(row["id"])
        request = self._blob(row["request_envelope"])
        dialect = dialects.named(row["dialect"])
        if row["turns"] is not None:
            system = self._blob(row["system"]) if row["system"] is not None else []
            dialect.put_prompt(request, system + conversation.prompt)
        response = conversation.response
        if conversation.answer is not None:
            dialect.put_answer(response, conversation.answer)
        return Record(
            id=row["id"],
            scenario=row["scenario"],
            session=row["session"],
            release=row["release"],
            candidate=row["candidate"],
            origin=Origin(row["origin"]),
            dialect=row["dialect"],
            upstream=row["upstream"],
            model=row["model"],
            end=End(row["end"]),
            status=row["status"],
            streamed=bool(row["streamed"]),
            request=request,
            response=response,
            usage=dialects.token_counts(response) or _counted(row),
            started_at=row["started_at"],
            first_byte_ms=row["first_byte_ms"],
            duration_ms=row["duration_ms"],
            error=row["error"],
            tokens=conversation.tokens,
        )

    def _blob(self, name: bytes) -> Any:
        """A fresh copy of what a blob holds."""
        return self._unpack(self._tx.execute(sa.select(_blobs.c.data).where(_blobs.c.digest == name)).scalar_one())

    def _unpack(self, data: bytes) -> Any:
        return jsontext.loads(self._decompress(data))

    def _read_down(self, receipt: str) -> None:
        """Read the record and all below it."""
        path = sa.select(*self.COLUMNS).where(_records.c.id == receipt).cte(recursive=True)
        path = path.union_all(sa.select(*self.COLUMNS).where(_records.c.id == path.c.base))
        self.add(self._tx.execute(sa.select(path)).all())
        if receipt not in self._deltas:
            raise LookupError(receipt)


def _counted(row: RowMapping) -> dict[str, int]:
    """The counts of a record that was imported beside a response without any."""
    return {name: row[name] for name in ("prompt_tokens", "completion_tokens") if row[name] is not None}
