"""What a session costs in the store: bytes a turn, against the bodies as they were sent.

    python -m benchmarks.turns [--turns 200] [--size-kb 400] [--captures FOLDER]

An agent of 200 turns whose last request is 400 kB is stored exchange by exchange, and so are the captured runs of real agents where a
folder has them. Compared with the raw bodies, and with each body compressed on its own. Writes benchmarks/results/turns.csv.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import random
import sqlite3
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import zstandard

from reef.experience import database, ids, schema  # noqa: F401 - registers its tables
from reef.experience.committer import Committer
from reef.types import End, Origin, Record

RESULTS = Path(__file__).resolve().parent / "results" / "turns.csv"
WORDS = ("the", "file", "test", "error", "line", "class", "return", "value", "module", "path", "build", "agent", "fix", "code", "index")
DIALECTS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--size-kb", type=int, default=400, help="of the last request")
    parser.add_argument("--captures", type=Path, help="a folder of captured runs, *.jsonl")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    runs: dict[str, list[Record]] = {f"{options.turns} turns, {options.size_kb} kB": list(session(options.turns, options.size_kb * 1000))}
    if options.captures:
        runs |= captured(options.captures)
    rows = [row for name, records in runs.items() for row in measure(name, records)]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(", ".join(f"{key} {value}" for key, value in row.items()))
    print(f"written to {options.output}")


def session(turns: int, size: int) -> Iterator[Record]:
    """A coding agent: 12 kB of system text, 18 kB of tools, and each turn a tool call and what the tool printed."""
    chance = random.Random(1)
    system = {"role": "system", "content": text(chance, 12_000)}
    tools = [{"type": "function", "function": {"name": f"tool_{n}", "description": text(chance, 1800)}} for n in range(10)]
    each = (size - 30_000) // turns - 300
    history: list[Any] = [system, {"role": "user", "content": text(chance, 500)}]
    for turn in range(turns):
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": "tool_1", "arguments": json.dumps({"path": text(chance, 60)})},
        }
        message = {"role": "assistant", "content": text(chance, 120), "tool_calls": [call]}
        answer = {"id": f"chatcmpl-{turn}", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
        yield record({"model": "m", "messages": list(history), "tools": tools, "stream": True}, answer, session="run")
        history += [message, {"role": "tool", "tool_call_id": f"call_{turn}", "content": text(chance, each)}]


def captured(folder: Path) -> dict[str, list[Record]]:
    """The requests of real agents, by run."""
    runs: dict[str, list[Record]] = defaultdict(list)
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            item = json.loads(line)
            dialect = DIALECTS.get(item["path"].partition("?")[0])
            if dialect and item["method"] == "POST":
                name = f"{file.stem} {item['run']}"
                runs[name].append(record(item["body"], None, session=name.replace(" ", "-"), dialect=dialect))
    return runs


def text(chance: random.Random, size: int) -> str:
    """Words that compress like prose and code do: to about a third."""
    words = (f"{chance.choice(WORDS)}{chance.randrange(1000) if chance.random() < 0.5 else ''}" for _ in itertools.count())
    made = ""
    while len(made) < size:
        made += " ".join(itertools.islice(words, 50)) + "\n"
    return made[:size]


def record(request: Any, response: Any, *, session: str, dialect: str = "chat") -> Record:
    return Record(
        id=ids.receipt(),
        scenario="s",
        session=session,
        release=None,
        origin=Origin.USER,
        dialect=dialect,
        upstream="u",
        model="m",
        end=End.COMPLETE,
        status=200,
        streamed=True,
        request=request,
        response=response,
        usage={},
        started_at=time.time(),
        first_byte_ms=1.0,
        duration_ms=2.0,
    )


def measure(name: str, records: list[Record]) -> Iterator[dict[str, Any]]:
    """One line for the whole, and one for each tenth: what a turn costs must not grow."""
    compress = zstandard.ZstdCompressor(level=3).compress
    raw = [orjson.dumps([item.request, item.response]) for item in records]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reef.db"
        engine = database.connect(f"sqlite:///{file}")
        database.create_tables(engine)
        empty = file.stat().st_size
        committer = Committer(engine)
        sizes, milliseconds = [0], []
        for item in records:
            began = time.perf_counter()
            committer.commit([item])
            milliseconds.append((time.perf_counter() - began) * 1000)
            sizes.append(stored(file))
        committer.close()
        engine.dispose()
        with sqlite3.connect(file) as tx:
            tx.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        grown = file.stat().st_size - empty
    tenths = 10 if len(records) >= 100 else 1
    parts = [("all", 0, len(records))]
    if tenths > 1:
        parts += [(f"{number + 1}/10", number * len(records) // 10, (number + 1) * len(records) // 10) for number in range(10)]
    for part, start, end in parts:
        count = end - start
        kept = sizes[end] - sizes[start]
        yield {
            "session": name,
            "part": part,
            "turns": count,
            "raw_bytes_a_turn": sum(map(len, raw[start:end])) // count,
            "compressed_bytes_a_turn": sum(len(compress(body)) for body in raw[start:end]) // count,
            "stored_bytes_a_turn": kept // count,
            "raw_over_stored": round(sum(map(len, raw[start:end])) / kept, 1),
            "file_bytes": grown if part == "all" else "",
            "store_ms_a_turn": round(sum(milliseconds[start:end]) / count, 2),
        }


def stored(file: Path) -> int:
    """Bytes in the rows of records and blobs."""
    with sqlite3.connect(file) as tx:
        blobs = tx.execute("SELECT coalesce(sum(length(data) + length(digest)), 0) FROM blobs").fetchone()[0]
        return int(blobs + tx.execute("SELECT coalesce(sum(length(delta) + 300), 0) FROM records").fetchone()[0])


if __name__ == "__main__":
    main()
