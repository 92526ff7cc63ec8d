"""What the gateway costs, beside a bare pass-through of the same stack and beside its peers, in one run.

    python -m benchmarks.gateway [--quick | --full] [--only reef,bare,…] [--peers DIR]

All answer the same requests from the same mock model server on loopback:

    mock        the model server alone          reef-infra  the public system of the same name, recording on
    bare        FastAPI, raw ASGI, aiohttp      litellm     the LiteLLM proxy
    reef-off    `reef serve`, nothing kept      portkey     the Portkey gateway
    reef        `reef serve`, every answer on disk before its last byte
    reef-2      the same with two gateway workers, where this version has them and there are 6 cores, or where `--only` names it

Rounds are interleaved, so that a machine that is busy with other things is busy for all of them: the ratios, taken within each round, are
what counts. Two processors of a rented machine may be two threads of one core for a second and not for the next, and the ratio of two runs
then swings by a third: the bare pass-through and Reef, which are closest to each other, run as pairs some times more in each round. Each
run is a session of an agent that sends its whole history with each request. By default all of JSON, SSE and 1, 32, 256 connections with
prompts of 1 kB, most with 10 kB, and a few with 100 and 400 kB: about 20 minutes. `--full` takes all 24: twice as long.
Peers are installed into DIR (a throw-away folder by default); one that cannot be had is said and left out. Needs `wrk`. Writes
benchmarks/results/gateway.csv and .svg, and prints the table of the README.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.parts import bars, figures, peers, processes
from benchmarks.parts.load import Load, Measure, answers, ask
from benchmarks.parts.peers import Missing, Place, System

RESULTS = Path(__file__).resolve().parent / "results" / "gateway.csv"
MODES, CONNECTIONS, PROMPTS_KB = ("json", "sse"), (1, 32, 256), (1, 10, 100, 400)
FULL = tuple(Load(mode, connections, size) for size in PROMPTS_KB for mode in MODES for connections in CONNECTIONS)
LARGE = (Load("json", 32, 100), Load("json", 1, 400))
USUAL = (*(load for load in FULL if load.prompt_kb == 1 or (load.prompt_kb == 10 and load.connections <= 32)), *LARGE)
QUICK = tuple(load for load in FULL if load.prompt_kb == 1 and load.connections <= 32)
COMPARED = ("bare", "reef", "reef-infra", "litellm", "portkey")
"""What ratios are given to."""
PATIENCE = 5
"""How many times as long a run is for a system that was too slow for the usual length in an earlier round."""
FAILING_SHARE = 0.01
"""A peer that fails more of its requests is not measured: how fast it refuses says nothing."""
PAIR, PAIRED_CONNECTIONS = ("bare", "reef"), 32
"""What is compared more often than once a round, and with how many connections."""
OURS = ("mock", "bare", "reef-off", "reef")
"""What is there without anything being installed."""

Found = dict[tuple[str, Load], list[Measure]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit status says whether every bar is met."""
    parser = argparse.ArgumentParser(prog="gateway", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="one short round without peers: shows that it runs, measures little")
    length.add_argument("--full", action="store_true", help="every mode with every number of connections and every size of prompt")
    parser.add_argument("--only", default="", help=f"comma-separated: {', '.join(peers.SYSTEMS)}; the mock is always there")
    parser.add_argument("--peers", type=Path, help="folder where installed peers are found and kept (reef-infra, litellm, portkey)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2, help="length of one run")
    parser.add_argument("--pairs", type=int, default=2, help=f"how often {' and '.join(PAIR)} run once more in each round")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    wanted = [name for name in options.only.split(",") if name] or list(OURS if options.quick else usual())
    if unknown := set(wanted) - set(peers.SYSTEMS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(peers.SYSTEMS)}")
    if shutil.which("wrk") is None:
        parser.error("wrk is missing: apt-get install wrk, or brew install wrk")
    rounds, seconds, pairs = (1, 0.5, 1) if options.quick else (options.rounds, options.seconds, options.pairs)
    loads = QUICK if options.quick else FULL if options.full else USUAL
    with tempfile.TemporaryDirectory(prefix="reef-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        systems = start(wanted, folder, (options.peers or folder / "peers").absolute(), stack)
        found, again = measure(systems, loads, rounds=rounds, seconds=seconds, pairs=pairs, folder=folder)
    about = {"rounds": rounds, "seconds": seconds, "pairs": pairs, "machine": figures.machine()}
    rows = [{**row, **about} for row in summarise(found, again)]
    figures.write_csv(options.output, rows)
    figures.plot_gateway(rows, options.output.with_suffix(".svg"))
    print(f"\n{figures.markdown(rows)}\n")
    return bars.report(rows)


def usual() -> list[str]:
    """All there is; two workers only where they have the cores to show what they are worth."""
    few = (os.cpu_count() or 1) < bars.MIN_CORES_FOR_TWO_WORKERS
    return [name for name in peers.SYSTEMS if not (few and name == "reef-2")]


def start(wanted: Sequence[str], folder: Path, environments: Path, stack: contextlib.ExitStack) -> list[System]:
    """Start what is compared, the mock first. What is our own must start; of the others, what cannot be had is said."""
    place = Place("", folder, environments)
    systems = [stack.enter_context(peers.started("mock", place))]
    place = replace(place, upstream=systems[0].url)
    for name in peers.SYSTEMS:
        if name == "mock" or name not in wanted:
            continue
        try:
            systems.append(stack.enter_context(peers.started(name, place)))
        except Missing as error:
            if name in OURS:
                raise SystemExit(f"{name} cannot be started: {error}") from None
            if not answers(systems[0].url, headers={}):
                raise SystemExit("the mock model server is gone: something on this machine ended it") from None
            print(f"{name} is left out: {error}", flush=True)
    return systems


def measure(
    systems: Sequence[System], loads: Sequence[Load], *, rounds: int, seconds: float, pairs: int, folder: Path
) -> tuple[Found, Found]:
    """Rounds over all loads, and within each load over all systems, beginning with another one each round; and the pairs."""
    found: Found = defaultdict(list)
    again: Found = defaultdict(list)
    slow: set[tuple[str, Load]] = set()
    paired = [system for system in systems if system.name in PAIR]

    def run(system: System, load: Load, into: Found, *, number: int) -> None:
        before = processes.cpu_s(system.pid)
        name = f"{number}.{load.mode}.{load.connections}.{load.prompt_kb}.{time.time_ns()}"
        # one connection gives samples enough in half the time; one that cannot serve every client once in time gets more
        length = seconds / 2 if load.connections == 1 else seconds * PATIENCE if (system.name, load) in slow else seconds
        result = ask(system.url, load, headers=system.headers, seconds=length, run=name, folder=folder)
        used = processes.cpu_s(system.pid) - before
        processes.wait_until_idle(system.pid)
        result = replace(result, cpu_ms=used * 1000 / result.requests if result.requests and used else math.nan)
        into[system.name, load].append(result)
        if result.requests < load.connections:
            slow.add((system.name, load))
        failed = f"  {result.errors} ERRORS" if result.errors else ""
        print(f"round {number + 1} {load} {system.name:10} {result.rps:8.0f} rps  p50 {result.p50_ms:.2f} ms{failed}", flush=True)

    for number in range(rounds):
        for load in loads:
            first = number % len(systems)
            for system in (*systems[first:], *systems[:first]):
                run(system, load, found, number=number)
            if load.connections == PAIRED_CONNECTIONS and len(paired) == len(PAIR):
                for pair in range(pairs):
                    for system in paired if pair % 2 else reversed(paired):
                        run(system, load, again, number=number)
    return found, again


def summarise(found: Found, again: Found) -> list[dict[str, Any]]:
    """Medians over the rounds; ratios and differences are taken within each round, or each pair, first."""
    rows = []
    found = {key: results for key, results in found.items() if not left_out(*key, results)}
    for (system, load), results in found.items():
        alone, bare = found["mock", load], found.get(("bare", load))
        row: dict[str, Any] = {"system": system, "mode": load.mode, "connections": load.connections, "prompt_kb": load.prompt_kb}
        row["rps"] = _median([result.rps for result in results], 1)
        for column in ("p50_ms", "p99_ms", "ttft_p50_ms", "cpu_ms"):
            row[column] = _median([getattr(result, column) for result in results], 3)
        row["added_p50_ms"] = _median([mine.p50_ms - its.p50_ms for mine, its in zip(results, alone, strict=True)], 3)
        row["added_ttft_ms"] = _median([mine.ttft_p50_ms - its.ttft_p50_ms for mine, its in zip(results, alone, strict=True)], 3)
        row["p50_over_bare_ms"] = _median([mine.p50_ms - its.p50_ms for mine, its in zip(results, bare, strict=True)] if bare else [], 3)
        for other in COMPARED:
            others = found.get((other, load), [])
            pairs = list(zip(results, others, strict=True)) if others else []
            if pairs and {system, other} == set(PAIR):
                pairs += zip(again[system, load], again[other, load], strict=True)
            row[f"rps_vs_{other}"] = _median([mine.rps / its.rps for mine, its in pairs if its.rps], 3)
        row["errors"] = sum(result.errors for result in (*results, *again[system, load]))
        rows.append(row)
    order = list(peers.SYSTEMS)
    return sorted(rows, key=lambda row: (row["prompt_kb"], row["mode"], row["connections"], order.index(row["system"])))


def left_out(system: str, load: Load, results: Sequence[Measure]) -> bool:
    """Whether a peer failed at a load, so that its figures say nothing. Ours stay: their failures are counted against us."""
    bad = [result for result in results if not result.requests or result.errors > FAILING_SHARE * result.requests]
    if system in OURS or len(bad) <= len(results) / 2:
        return False
    why = f"failed {sum(result.errors for result in bad)} requests" if any(result.errors for result in bad) else "answered nothing in time"
    print(f"{system} is left out at {load}: it {why} in {len(bad)} of {len(results)} rounds")
    return True


def _median(values: Sequence[float], digits: int) -> float | str:
    """The median of what was measured; empty where nothing was."""
    known = [value for value in values if not math.isnan(value)]
    return round(statistics.median(known), digits) if known else ""


if __name__ == "__main__":
    raise SystemExit(main())
