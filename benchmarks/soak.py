"""Whether a long run leaves anything behind: memory, descriptors, threads, records.

    python -m benchmarks.soak [--requests 200000] [--quick] [--database-url URL]

A real `reef serve` in front of a mock model server gets requests in all dialects, JSON and SSE, from sessions that go on for several turns
and from fresh ones; reports come in between, and some clients leave before the first byte or in mid-stream. The learner keeps house every
second instead of every minute: a run is some minutes long, and must show what its passes leave behind. Every process is looked at 200
times. After warm-up the slope of its memory over the requests must have a 95 % confidence interval that contains zero (or lies below it),
that of its descriptors and threads, too (or they grow by less than one in the whole run); no process may have been started again; and every
receipt whose answer reached its end must be in the store. Writes benchmarks/results/soak.csv, soak_samples.csv and soak.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.parts import figures, peers, processes, trend
from benchmarks.parts.traffic import Tally, Traffic
from reef.experience import database, schema

RESULTS = Path(__file__).resolve().parent / "results" / "soak.csv"
ROOT = Path(__file__).resolve().parents[1]
REQUESTS, QUICK_REQUESTS = 200_000, 2_000
SAMPLES = 200
WARM_UP = 0.4
"""By then what is remembered is at its bounds: SQLite's cache of pages and, after some 60,000 requests, the keeper's of histories."""
MIB = 2**20
MOST_SAID = 20
PER = 100_000
"""Slopes are given for so many requests."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, judge, write; the exit status is the verdict."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--warm-up", type=float, default=WARM_UP, help="share of the requests that slopes leave out")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_REQUESTS} requests; slopes are not judged: all of it is warm-up")
    parser.add_argument("--database-url", default="", help="another database than SQLite; it must be empty")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.requests = QUICK_REQUESTS
    with tempfile.TemporaryDirectory(prefix="reef-soak-") as name:
        folder = Path(name)
        samples, tally, took_s = soak(folder, options)
        stored = look_into_store(options.database_url or f"sqlite:///{folder / 'state' / 'reef.db'}")
    rows = summarise(samples, warm_up=options.warm_up * options.requests)
    problems = judge(rows, tally, stored, slopes=not options.quick)
    common = {"requests": tally.asked, "seconds": round(took_s), "records": len(stored["ends"]), "machine": figures.machine()}
    common["bytes_per_record"] = round(stored["bytes"] / max(len(stored["ends"]), 1))
    figures.write_csv(options.output, [{**row, **common} for row in rows])
    figures.write_csv(options.output.with_stem(options.output.stem + "_samples"), samples)
    figures.plot_soak(samples, options.output.with_suffix(".svg"))
    gone = sum(end == "client_gone" for end in stored["ends"].values())
    say(rows, tally, {**common, "gone": gone})
    for problem in problems[:MOST_SAID]:
        print(f"FAILED: {problem}")
    if len(problems) > MOST_SAID:
        print(f"FAILED: and {len(problems) - MOST_SAID} more")
    if not problems:
        print("passed" + (" (quick: slopes not judged)" if options.quick else ": memory and descriptors flat, no record missing"))
    return 1 if problems else 0


def soak(folder: Path, options: argparse.Namespace) -> tuple[list[dict[str, Any]], Tally, float]:
    """Start everything, send everything, and stop `reef serve` as its user would."""
    with contextlib.ExitStack() as stack:
        mock = stack.enter_context(peers.started("mock", peers.Place("", folder, folder)))
        port = peers.free_port()
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "reef", "serve", "--upstream", f"{mock.url}/v1", "--port", str(port)]
        settings = [f"storage.dir={folder / 'state'}", "upstream.dialects=[chat, responses, messages]", "storage.retention.interval_s=1"]
        settings += [f"storage.url={options.database_url}"] if options.database_url else []
        for setting in settings:
            command += ["--set", setting]
        environment = {"REEF_TOKEN": peers.TOKEN, "PYTHONPATH": str(ROOT)}
        running = processes.running(command, log=folder / "reef.log", environment=environment, ready=lambda: healthy(url))
        reef = stack.enter_context(running)
        samples: list[dict[str, Any]] = []
        every = max(options.requests // SAMPLES, 1)

        def on_request(number: int) -> None:
            if number % every == 0:
                samples.extend(sample(reef.pid, number))
            if number % max(options.requests // 10, 1) == 0:
                print(f"{number} requests after {time.monotonic() - begun:.0f} s", flush=True)

        traffic = Traffic(url, token=peers.TOKEN, requests=options.requests, clients=options.clients, on_request=on_request)
        begun = time.monotonic()
        asyncio.run(traffic.run())
        return samples, traffic.tally, time.monotonic() - begun


def healthy(url: str) -> bool:
    """Whether the gateway answers."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/healthz", timeout=2) as answer:
        return json.load(answer)["status"] == "ok"
    return False


def sample(root: int, requests: int) -> list[dict[str, Any]]:
    """Every process at this moment; those of one name are numbered in the order they were started."""
    found: list[dict[str, Any]] = []
    for seen in sorted(processes.look(root), key=lambda seen: seen.pid):
        like = sum(row["process"].split(" ")[0] == seen.name for row in found)
        name = f"{seen.name} {like + 1}" if like else seen.name
        row = {"requests": requests, "process": name, "pid": seen.pid, "rss_mib": round(seen.rss_bytes / MIB, 2)}
        found.append({**row, "descriptors": seen.descriptors, "threads": seen.threads})
    return found


def look_into_store(url: str) -> dict[str, Any]:
    """Receipts with their ends, reports, and what the database takes on disk."""
    engine = database.connect(url)
    with engine.connect() as connection:
        ends = {row.id: str(row.end) for row in connection.execute(sa.select(schema.records.c.id, schema.records.c.end))}
        reports = set(connection.execute(sa.select(schema.reports.c.id)).scalars())
        if engine.dialect.name == "postgresql":
            size = connection.execute(sa.text("SELECT pg_database_size(current_database())")).scalar_one()
        else:
            size = sum(file.stat().st_size for file in Path(engine.url.database or "").parent.glob("reef.db*"))
    engine.dispose()
    return {"ends": ends, "reports": reports, "bytes": size}


def summarise(samples: Sequence[dict[str, Any]], *, warm_up: float) -> list[dict[str, Any]]:
    """For each process its slopes after warm-up, and where it came from and went to."""
    rows = []
    for name in dict.fromkeys(row["process"] for row in samples):
        all_of_it = [row for row in samples if row["process"] == name]
        mine = [row for row in all_of_it if row["requests"] >= warm_up]
        if not mine:  # such as what only helps others to start
            continue
        pids = len({sample["pid"] for sample in all_of_it})
        row: dict[str, Any] = {"process": name, "pids": pids, "there_at_the_end": mine[-1]["requests"] == samples[-1]["requests"]}
        for column in ("rss_mib", "descriptors", "threads"):
            found = trend.fit([sample["requests"] / PER for sample in mine], [sample[column] for sample in mine])
            row |= {f"{column}_first": mine[0][column], f"{column}_last": mine[-1][column]}
            row |= {f"{column}_slope": round(found.slope, 3), f"{column}_low": round(found.low, 3), f"{column}_high": round(found.high, 3)}
        rows.append(row)
    return rows


def judge(rows: Sequence[dict[str, Any]], tally: Tally, stored: dict[str, Any], *, slopes: bool) -> list[str]:
    """All that is wrong, in words."""
    ends = stored["ends"]
    problems = list(tally.failures)
    missing = [receipt for receipt in tally.answered if ends.get(receipt) != "complete"]
    if missing:
        problems.append(
            f"{len(missing)} of {len(tally.answered)} receipts whose answer reached its end are not in the store as complete: {missing[:3]}"
        )
    if lost := tally.left - set(ends):
        problems.append(f"{len(lost)} of {len(tally.left)} receipts of streams that were left are not in the store")
    if lost := tally.reports - stored["reports"]:
        problems.append(f"{len(lost)} of {len(tally.reports)} reports are not in the store")
    for row in rows:
        if row["pids"] > 1:
            problems.append(f"{row['process']} was started again {row['pids'] - 1} times")
        if not row["there_at_the_end"]:
            problems.append(f"{row['process']} was gone before the end")
        for column, least in (("rss_mib", 0.0), ("descriptors", 1.0), ("threads", 1.0)):
            grown = row[f"{column}_slope"] * tally.asked / PER
            if slopes and row[f"{column}_low"] > 0 and grown >= least:
                problems.append(f"{row['process']}: {column} grows by {row[f'{column}_slope']} per {PER:,} requests")
    return problems


def say(rows: Sequence[dict[str, Any]], tally: Tally, common: dict[str, Any]) -> None:
    """What was found, for people."""
    for row in rows:
        memory = f"{row['rss_mib_first']:.1f} → {row['rss_mib_last']:.1f} MiB, slope {row['rss_mib_slope']:+.2f}"
        interval = f"[{row['rss_mib_low']:+.2f}, {row['rss_mib_high']:+.2f}] MiB per {PER:,} requests"
        counts = f"{row['descriptors_last']} descriptors, {row['threads_last']} threads"
        print(f"{row['process']:24} {memory} {interval}; {counts}")
    rate = f"{common['requests']} requests in {common['seconds']} s ({common['requests'] / max(common['seconds'], 1):.0f}/s)"
    print(f"{rate}, {len(tally.answered)} answered, {len(tally.reports)} reports")
    print(f"left before the first byte: {tally.left_early}, in mid-stream: {len(tally.left)}; recorded as client_gone: {common['gone']}")
    print(f"{common['records']} records, {common['bytes_per_record']} bytes each on disk")


if __name__ == "__main__":
    raise SystemExit(main())
