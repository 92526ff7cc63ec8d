"""`reef import` and `reef export`: experience in and out of a running service, line by line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from reef.cli.options import DEFAULT_URL, Url
from reef.errors import ReefError

BATCH_LINES = 100
BATCH_BYTES = 4 * 1024 * 1024
"""A batch ends with the line that brings it here: what is in memory is this and one line more."""
MAX_LINE_BYTES = 128 * 1024 * 1024
LINES = "application/x-ndjson"
SOME = {"scenario": "Only this one; else all of them.", "lines": "The workload of lines that name none."}


def import_lines(
    file: Annotated[str, typer.Argument(help="A file with a JSON object in each line; - reads standard input.")],
    scenario: Annotated[str | None, typer.Option("--scenario", "-s", help=SOME["lines"])] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Store records, reports and sessions from a file, with an admin's token. What is there already is passed over."""
    from reef.cli.http import send

    total: dict[str, dict[str, int]] = {"stored": {}, "there": {}}
    gone = 0
    headers = {"x-reef-scenario": scenario} if scenario else {}
    with _opened(file) as source:
        number = 1
        for count, batch in _batches(source, file):
            try:
                answer = send(url, f"/reef/records/batch?first={number}", batch, content_type=LINES, headers=headers)
            except ReefError as error:
                done = f"The lines before {number} are stored ({_told(total)})" if number > 1 else "Nothing is stored"
                hint = f"{done}, of those after it none. What is stored is passed over when the file is imported again."
                raise ReefError(f"{file}: {error.message}", hint=f"{error.hint} {hint}".strip()) from None
            for what, counts in total.items():
                for kind, found in answer[what].items():
                    counts[kind] = counts.get(kind, 0) + found
            gone += answer["gone"]
            number += count
            _show(f"{number - 1} lines")
    _show("", last=True)
    print(f"{file}: {_told(total)}" + (f"; {gone} of the records without their content, which retention had dropped" if gone else ""))


def export_lines(
    scenario: Annotated[str | None, typer.Option("--scenario", "-s", help=SOME["scenario"])] = None,
    session: Annotated[str | None, typer.Option(help="Only this session of it.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; else standard output.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Write every session, record and report as a line of JSON, for `reef import` or another program. Of a record whose content retention
    dropped what is left of it."""
    from reef.cli.http import fetch_parts, query

    parts = fetch_parts(url, "/reef/export" + query(scenario=scenario, session=session))
    if output is None:
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    unfinished = output.with_name(f".{output.name}.unfinished")
    try:
        with unfinished.open("wb") as target:
            for part in parts:
                target.write(part)
        unfinished.replace(output)
    except OSError as error:
        raise ReefError(f"cannot write {output}: {error.strerror}", hint="Name another file with -o.") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _opened(file: str) -> BinaryIO:
    if file == "-":
        return sys.stdin.buffer
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise ReefError(
            f"cannot read {file}: {error.strerror}", hint="Give a file that `reef export` wrote, or - for standard input."
        ) from None


def _batches(source: BinaryIO, file: str) -> Iterator[tuple[int, bytes]]:
    """Some lines at a time, and how many."""
    batch: list[bytes] = []
    size = number = 0
    while line := source.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise ReefError(f"{file}: line {number}: longer than {MAX_LINE_BYTES >> 20} MiB", hint="Is it a file of lines?")
        batch.append(line)
        size += len(line)
        if len(batch) == BATCH_LINES or size >= BATCH_BYTES:
            yield len(batch), b"".join(batch)
            batch, size = [], 0
    if batch:
        yield len(batch), b"".join(batch)


def _told(total: dict[str, dict[str, Any]]) -> str:
    stored = ", ".join(f"{count} {kind}" for kind, count in total["stored"].items() if count) or "nothing"
    there = sum(total["there"].values())
    return f"{stored} stored" + (f", {there} there already" if there else "")


def _show(text: str, *, last: bool = False) -> None:
    """Progress, for a person who watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
