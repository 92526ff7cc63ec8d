"""What recording costs: the gateway beside a bare pass-through of the same stack and beside reef-infra, in one run.

    python benchmarks/gateway.py [--quick] [--reef-infra-python PATH | --without-reef-infra]

Four systems answer the same requests from the same mock model server on loopback: the mock alone, the bare pass-through, this gateway
(`reef serve`, every answer on disk before its last byte) and reef-infra (recording on, too). Rounds are interleaved, so that a machine
that is busy with other things is busy for all of them; the ratios are what counts. Needs `wrk`. Writes benchmarks/results/gateway.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
PARTS = HERE / "parts"
RESULTS = HERE / "results" / "gateway.csv"
TOKEN = "bench-token"
MODES = {"json": "false", "sse": "true"}
CONNECTIONS = (1, 32)
REEF_INFRA = "reef-infra==0.1.3"  # 0.2.0 was withdrawn by its authors: "published before 0.2 was ready"


@dataclass(frozen=True)
class Measure:
    """One run of wrk."""

    rps: float
    p50_ms: float
    p99_ms: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it runs, measures little")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="length of one run of wrk")
    parser.add_argument("--reef-infra-python", type=Path, help="the Python of a virtual environment with reef-infra")
    parser.add_argument("--without-reef-infra", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.error("wrk is missing: apt-get install wrk, or brew install wrk")
    rounds, seconds = (1, 1) if options.quick else (options.rounds, options.seconds)
    with tempfile.TemporaryDirectory(prefix="reef-bench-") as folder, contextlib.ExitStack() as stack:
        urls = start_all(options, Path(folder), stack)
        found = measure(urls, rounds=rounds, seconds=seconds)
    table = summarise(found)
    write(table, options.output, rounds=rounds, seconds=seconds)
    return report(table)


def start_all(options: argparse.Namespace, folder: Path, stack: contextlib.ExitStack) -> dict[str, str]:
    """Start what is compared; give each one's address."""
    mock, bare, ours, peer = (free_port() for _ in range(4))
    upstream = f"http://127.0.0.1:{mock}"
    stack.enter_context(process([sys.executable, str(PARTS / "mock_upstream.py"), str(mock)], folder / "mock.log", upstream))
    urls = {"mock": upstream}
    command = [sys.executable, str(PARTS / "bare.py"), str(bare), f"{upstream}/v1"]
    stack.enter_context(process(command, folder / "bare.log", f"http://127.0.0.1:{bare}"))
    urls["bare"] = f"http://127.0.0.1:{bare}"
    command = [sys.executable, "-m", "reef", "serve", "--upstream", f"{upstream}/v1", "--model", "m", "--port", str(ours)]
    command += ["--set", f"storage.dir={folder / 'reef'}"]
    environment = {"REEF_TOKEN": TOKEN, "PYTHONPATH": str(HERE.parent)}
    stack.enter_context(process(command, folder / "reef.log", f"http://127.0.0.1:{ours}", environment))
    urls["reef"] = f"http://127.0.0.1:{ours}"
    if not options.without_reef_infra:
        python = options.reef_infra_python or build_peer(folder)
        command = [str(python.parent / "reef"), "serve", "--reef.token", TOKEN, "--inference.upstream-url", upstream]
        command += ["--inference.upstream-model", "m", "--storage.agent-record-dir", str(folder / "peer"), "--reef.port", str(peer)]
        command += ["--reef.run-dir", str(folder / "peer-run")]
        stack.enter_context(process(command, folder / "peer.log", f"http://127.0.0.1:{peer}"))
        urls["reef-infra"] = f"http://127.0.0.1:{peer}"
    return urls


def build_peer(folder: Path) -> Path:
    """A throw-away virtual environment with reef-infra."""
    names = ("python3.14", "python3.13", "python3.12")
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python3"))
    base = next((found for name in names if (found := shutil.which(name)) and works(found)), None) or (str(pyenv[-1]) if pyenv else None)
    if base is None:
        raise SystemExit("reef-infra needs Python 3.12 or newer: give one with --reef-infra-python, or leave it out: --without-reef-infra")
    print(f"installing {REEF_INFRA} with {base} …", flush=True)
    venv = folder / "peer-venv"
    subprocess.run([base, "-m", "venv", venv], check=True, timeout=120)
    subprocess.run([venv / "bin" / "pip", "install", "--quiet", REEF_INFRA], check=True, timeout=900)
    return venv / "bin" / "python"


def works(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, timeout=20).returncode == 0


@contextlib.contextmanager
def process(command: list[str], log: Path, url: str, environment: dict[str, str] | None = None) -> Iterator[None]:
    """A server, from its first answer to its end."""
    with log.open("wb") as output:
        running = start(command, output, environment or {})
        try:
            wait_until_it_answers(url, running, log)
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)


def start(command: list[str], output: IO[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    folder = Path(output.name).parent  # not this checkout: reef-infra's package is called reef, too
    return subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment}, cwd=folder, start_new_session=True)


def wait_until_it_answers(url: str, running: subprocess.Popen[bytes], log: Path) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}", "x-reef-scenario": "default"}
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and running.poll() is None:
        with contextlib.suppress(OSError):
            request = urllib.request.Request(f"{url}/v1/chat/completions", data=body, headers=headers)
            with urllib.request.urlopen(request, timeout=10) as answer:
                answer.read()
                return
        time.sleep(0.1)
    raise SystemExit(f"{url} does not answer:\n{log.read_text(errors='replace')[-3000:]}")


def measure(urls: dict[str, str], *, rounds: int, seconds: int) -> dict[tuple[str, str, int], list[Measure]]:
    """Rounds over all systems, modes and numbers of connections."""
    found: dict[tuple[str, str, int], list[Measure]] = defaultdict(list)
    for number in range(rounds):
        for mode in MODES:
            for connections in CONNECTIONS:
                for system, url in urls.items():
                    result = wrk(url, mode=mode, connections=connections, seconds=seconds, run=f"{number}.{mode}.{connections}")
                    found[system, mode, connections].append(result)
                    print(
                        f"round {number + 1} {mode:4} c={connections:<2} {system:10} {result.rps:8.0f} rps  p50 {result.p50_ms:.2f} ms",
                        flush=True,
                    )
    return found


def wrk(url: str, *, mode: str, connections: int, seconds: int, run: str) -> Measure:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(PARTS / "post.lua"), url]
    done = subprocess.run([*command, "--", MODES[mode], run, TOKEN], capture_output=True, text=True, timeout=seconds + 60, check=True)
    result = json.loads(done.stdout.split("RESULT ", 1)[1])
    if result["errors"] or not result["requests"]:
        raise SystemExit(f"{url} failed under load: {result}")
    return Measure(result["requests"] / result["seconds"], result["p50_ms"], result["p99_ms"])


def summarise(found: dict[tuple[str, str, int], list[Measure]]) -> list[dict[str, str | int | float]]:
    """Medians over the rounds, and ratios of runs of the same round."""
    rows: list[dict[str, str | int | float]] = []
    for (system, mode, connections), results in found.items():
        row: dict[str, str | int | float] = {
            "system": system,
            "mode": mode,
            "connections": connections,
            "rps": round(statistics.median(result.rps for result in results), 1),
            "p50_ms": round(statistics.median(result.p50_ms for result in results), 3),
            "p99_ms": round(statistics.median(result.p99_ms for result in results), 3),
        }
        alone = found["mock", mode, connections]
        row["added_p50_ms"] = round(statistics.median(mine.p50_ms - its.p50_ms for mine, its in zip(results, alone, strict=True)), 3)
        for other in ("bare", "reef-infra"):
            others = found.get((other, mode, connections))
            ratios = [mine.rps / its.rps for mine, its in zip(results, others, strict=True)] if others else []
            row[f"rps_vs_{other}"] = round(statistics.median(ratios), 3) if ratios else ""
        rows.append(row)
    return rows


def write(table: list[dict[str, str | int | float]], file: Path, *, rounds: int, seconds: int) -> None:
    """The table, and in every line the machine and the length it was measured with."""
    memory_gib = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    machine = f"{os.cpu_count()} cores / {memory_gib} GiB / {platform.system()} / Python {platform.python_version()}"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, [*table[0], "rounds", "seconds", "machine"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "rounds": rounds, "seconds": seconds, "machine": machine} for row in table)
    print(f"\nwritten to {file}")


def report(table: list[dict[str, str | int | float]]) -> int:
    """Say how it stands with the bars; 1 if one is missed."""
    missed = 0
    for row in table:
        if row["system"] != "reef":
            continue
        if row["connections"] == 1:
            print(f"{row['mode']:4}  c=1   adds {row['added_p50_ms']} ms to the p50")
            continue
        for other, bar in (("bare", 0.6), ("reef-infra", 8.0)):
            ratio = row[f"rps_vs_{other}"]
            if isinstance(ratio, float):
                missed += ratio < bar
                print(f"{row['mode']:4}  c=32  {ratio:.2f} × the requests/s of {other} (bar {bar}){'' if ratio >= bar else '  MISSED'}")
    return 1 if missed else 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main())
