"""How long new weights take into a running engine, how long its users wait for it, and how old what they teach is by then.

    python -m benchmarks.sync [--model smollm2-135m] [--updates 3] [--quick]

One vLLM serves the model in the type of its weights while one request after another is streamed from it. Two other sets of weights
(every tensor moved a little) are brought in by turns, each way that Reef has here: `gloo` all of them, `gloo, changed` with the embedding
left as it is, `ipc` (by memory that both see), `disk` and `lora`. Per way the median of: seconds and bytes per second of staging, the whole
update, the pause; and the longest gap between two streamed tokens during all updates, beside the longest without one. The limits of this
machine for the same bytes: a copy in memory, writing to the disk with fsync, reading back what is in the page cache.

Then a `reef serve` learns on the same engine, by SAO, while that stream goes on: a batch of 8 reports at a time, and the median of how long
the last of them takes into a candidate (trained, stored), and from there into an answer of the new release. The gate is given no tasks, and
each candidate is promoted at once: what judging takes is up to the tasks. The first update of a service is told apart. During the last one
users go on reporting, a batch in as long as such an update takes, and the share of the reports that was trained on is counted: with the
bound on staleness that is the default, and with 0.

Writes benchmarks/results/sync.csv, sync_updates.csv and sync.svg.

`--model` takes a folder, a name of `reef model list`, or `tiny`. `--quick` is tiny with two updates. `--only ways` and `--only updates`
leave the other part out, and the plot.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.parts import figures, updates
from benchmarks.parts.progress import say
from benchmarks.parts.vllm_server import server
from benchmarks.parts.weights import make_lora, model_folder, moved
from reef.config import LearnerConfig, VLLMConfig
from reef.serving.engine.client import EngineClient
from reef.serving.sync.disk import DiskSync
from reef.serving.sync.held import read_folder
from reef.serving.sync.interface import Weights, WeightSync, weights_in
from reef.serving.sync.lora import LoraSync
from reef.serving.sync.transfer import TransferSync

RESULTS = Path(__file__).resolve().parent / "results" / "sync.csv"
NAME = "measured"
QUIET_S = 3.0
"""How long the stream is watched without an update."""
TOKENS = 200
EMBEDDING = "embed_tokens"


class Reader:
    """Streams one answer after another, and knows the longest gap between two tokens since it was asked last."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._stop = threading.Event()
        self._longest = 0.0
        self._lock = threading.Lock()
        self.answers = 0
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def longest_gap(self) -> float:
        """Since the last call, in seconds."""
        with self._lock:
            longest, self._longest = self._longest, 0.0
        return longest

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._answer()
                self.answers += 1
            except (OSError, http.client.HTTPException, RuntimeError) as error:
                self.errors.append(str(error))

    def _answer(self) -> None:
        body = {"model": NAME, "prompt": list(range(20, 40)), "max_tokens": TOKENS, "stream": True, "ignore_eos": True, "temperature": 0}
        connection = http.client.HTTPConnection(self._address, timeout=120)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(answer.read().decode())
            last = None
            while line := answer.readline():
                if line.startswith(b"data: {"):
                    now = time.perf_counter()
                    with self._lock:
                        self._longest = max(self._longest, now - last) if last is not None else self._longest
                    last = now
        finally:
            connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; not zero if a request failed."""
    parser = argparse.ArgumentParser(prog="sync", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("ways", "updates"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.model, options.updates = "tiny", 2
    with tempfile.TemporaryDirectory(prefix="reef-sync-") as name:
        rows, learned, errors = measure(Path(name), model=options.model, count=options.updates, only=options.only)
    of = {"model": Path(options.model).name, "machine": figures.machine()}
    for found, file in ((rows, options.output), (learned, options.output.with_stem(f"{options.output.stem}_updates"))):
        if found:
            figures.write_csv(file, [{**row, **of} for row in found])
    if rows and learned:
        plot(rows, learned, options.output.with_suffix(".svg"))
    for error in errors:
        print(f"a request failed: {error}")
    return 1 if errors else 0


def measure(folder: Path, *, model: str, count: int, only: str | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """One line per way and per limit; one per bound on staleness; and the requests that failed."""
    base = model_folder(model, folder)
    say(f"the model is {base}")
    rows = [] if only == "updates" else limits(base, folder)
    made = {} if only == "updates" else variants(base, folder, count=count)  # before anything runs that would be slowed by it
    config = VLLMConfig(
        model=str(base), name=NAME, dtype="auto", max_model_len=512, lora_slots=2, max_lora_rank=8, max_loras=4 * count + 8, tool_parser=""
    )
    say("starting the engine")
    with server(config, log=folder / "engine.log") as (client, _), Reader(client.url) as reader:
        say("the engine is ready")
        learned = [] if only == "ways" else learn(folder, client=client, base=base, reader=reader, count=count)
        rows += [] if only == "updates" else swaps(made, client=client, base=base, reader=reader, count=count)
    return rows, learned, reader.errors


def variants(base: Path, folder: Path, *, count: int) -> dict[str, list[Path]]:
    """What is brought in, by the kind of change."""
    say("making the weights that are brought in")
    return {
        "all": [moved(base, folder / f"all-{seed}", seed=seed, but="") for seed in (1, 2)],
        "changed": [moved(base, folder / f"changed-{seed}", seed=seed, but=EMBEDDING) for seed in (1, 2)],
        "lora": [make_lora(base, folder / f"lora-{seed}", seed=seed) for seed in range(1, count + 1)],
    }


def swaps(made: dict[str, list[Path]], *, client: EngineClient, base: Path, reader: Reader, count: int) -> list[dict[str, Any]]:
    """One line per way."""
    ways: dict[str, tuple[Callable[[], WeightSync], list[Path]]] = {
        "gloo": (lambda: TransferSync([client], channel="gloo"), made["all"]),
        "gloo, changed": (lambda: TransferSync([client], channel="gloo"), made["changed"]),
        "ipc": (lambda: TransferSync([client], channel="ipc"), made["all"]),
        "disk": (lambda: DiskSync([client], base=base), made["all"]),
        "lora": (lambda: LoraSync([client], keep=count), made["lora"]),
    }
    rows, steps = [], itertools.count(1)
    for way, (make, folders) in ways.items():
        say(f"{way}: {count} updates")
        sync = make()
        if way == "gloo, changed":
            update(sync, weights_in(folders[1], name=f"bench.{next(steps)}"), reader)  # so that the embedding is there
        time.sleep(0.1)
        reader.longest_gap()
        time.sleep(QUIET_S)
        without = reader.longest_gap()
        measured = [
            update(sync, weights_in(folders[number % len(folders)], name=f"bench.{next(steps)}"), reader) for number in range(count)
        ]
        rows.append(line(way, measured, without=without))
        say(", ".join(f"{what} {value}" for what, value in rows[-1].items()))
    return rows


def learn(folder: Path, *, client: EngineClient, base: Path, reader: Reader, count: int) -> list[dict[str, Any]]:
    """From reports to releases, and what becomes of the reports: one line per bound on staleness.

    The first update of a service takes several times as long as those after it, so it is told apart. How long the others take does not
    depend on the bound: those with nothing else reported are timed under the default alone, and give the pace of the users under both.
    """
    rows: list[dict[str, Any]] = []
    default = LearnerConfig.model_fields["max_staleness"].default
    pace_s = 0.0
    for bound in (default, 0):
        say(f"starting reef serve, max_staleness {bound}")
        with updates.learning(folder / f"stale-{bound}", engine=client.url, model=NAME, base=base, max_staleness=bound) as service:
            reader.longest_gap()
            first, *timed = updates.latencies(service, updates=1 if pace_s else count)
            pace_s = pace_s or updates.medians(timed or [first])["update_s"] / updates.BATCH
            under_reports, share = updates.shares(service, pace_s=pace_s)
            timed.append(under_reports)
            gap = {"longest_gap_s": round(reader.longest_gap(), 4), "first_update_s": round(first["update_s"], 3)}
            row = {"max_staleness": bound, "updates": len(timed), **updates.medians(timed), **gap, "report_every_s": round(pace_s, 3)}
            rows.append({**row, **share})
            say(", ".join(f"{what} {value}" for what, value in rows[-1].items()))
    for lora in client.models()[1:]:
        client.unload_lora(lora)
    return rows


def update(sync: WeightSync, weights: Weights, reader: Reader) -> dict[str, float]:
    """Bring weights in and see that they serve."""
    reader.longest_gap()
    started = time.perf_counter()
    staged = sync.stage(weights)
    swap = sync.activate(weights)
    total = time.perf_counter() - started
    sync.verify(weights)
    time.sleep(0.3)  # the first tokens after it count too
    return {
        "stage_s": staged.seconds,
        "bytes": staged.size_bytes,
        "pause_s": swap.pause_s,
        "update_s": total,
        "gap_s": reader.longest_gap(),
    }


def line(way: str, measured: Sequence[dict[str, float]], *, without: float) -> dict[str, Any]:
    """The medians of a way."""
    middle = {key: statistics.median(row[key] for row in measured) for key in measured[0]}
    return {
        "way": way,
        "bytes": int(middle["bytes"]),
        "stage_s": round(middle["stage_s"], 4),
        "mb_per_s": round(middle["bytes"] / middle["stage_s"] / 1e6, 1),
        "update_s": round(middle["update_s"], 4),
        "pause_s": round(middle["pause_s"], 4),
        "longest_gap_s": round(max(row["gap_s"] for row in measured), 4),
        "longest_gap_without_s": round(without, 4),
    }


def limits(base: Path, folder: Path) -> list[dict[str, Any]]:
    """What this machine does with as many bytes and nothing else."""
    import torch

    tensors = list(read_folder(base).values())
    size = sum(tensor.nbytes for tensor in tensors)
    source = torch.ones(size, dtype=torch.uint8)
    target = torch.zeros_like(source)
    file = folder / "limit.bin"

    def write() -> None:
        with file.open("wb") as output:
            output.write(memoryview(source.numpy()))
            output.flush()
            os.fsync(output.fileno())

    def read() -> None:
        with file.open("rb") as stored:
            stored.readinto(memoryview(target.numpy()))

    rows = []
    for what, act in (("memcpy", lambda: target.copy_(source)), ("disk write", write), ("disk read, cached", read)):
        seconds = min(clock(act) for _ in range(3))
        rows.append({
            "way": what, "bytes": size, "stage_s": round(seconds, 4), "mb_per_s": round(size / seconds / 1e6, 1), "update_s": "",
            "pause_s": "", "longest_gap_s": "", "longest_gap_without_s": "",
        })  # fmt: skip
        say(f"{what}: {rows[-1]['mb_per_s']} MB/s")
    file.unlink()
    return rows


def clock(act: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def plot(rows: Sequence[dict[str, Any]], learned: Sequence[dict[str, Any]], file: Path) -> None:
    """Bytes per second beside the limits, what users feel of an update, how long one takes, and how much of the reports is used."""
    pyplot = figures.pyplot()
    if pyplot is None:
        return
    figure, ((left, right), (below, share)) = pyplot.subplots(2, 2, figsize=(9, 4.6), height_ratios=(2.8, 1), layout="constrained")
    moving = [row for row in rows if row["way"] != "lora"]
    bars = left.barh([row["way"] for row in moving], [row["mb_per_s"] for row in moving], height=0.6)
    left.bar_label(bars, fmt="%.4g", padding=2, fontsize=7)
    left.invert_yaxis()
    left.set_xscale("log")
    left.minorticks_off()
    left.set_title("staging, MB/s, beside the limits", fontsize=9)
    felt = [row for row in rows if row["pause_s"] != ""]
    for offset, key, label in (
        (-0.27, "longest_gap_without_s", "no update"),
        (0.0, "longest_gap_s", "during updates"),
        (0.27, "pause_s", "the pause"),
    ):
        shown = right.barh([place + offset for place in range(len(felt))], [row[key] for row in felt], height=0.25, label=label)
        right.bar_label(shown, fmt="%.3g", padding=2, fontsize=6)
    right.set_yticks(range(len(felt)), [row["way"] for row in felt])
    right.invert_yaxis()
    right.set_title("longest gap between two streamed tokens (s)", fontsize=9)
    right.legend(fontsize=7, frameon=False)
    bounds = [f"max_staleness {row['max_staleness']}" for row in learned]
    for key, begin, label in (("trained_s", None, "until trained"), ("served_s", "trained_s", "until it serves")):
        shown = below.barh(bounds, [row[key] for row in learned], left=[row[begin] if begin else 0 for row in learned], label=label)
        below.bar_label(shown, fmt="%.3g", label_type="center", fontsize=7)
    below.set_title("from the last report of a batch to the new release (s)", fontsize=9)
    below.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2)
    share.bar_label(share.barh(bounds, [row["share"] for row in learned], height=0.6), fmt="%.2g", padding=2, fontsize=7)
    share.set_xlim(0, 1.1)
    share.set_title("share of the reports that was trained on", fontsize=9)
    figures.save(pyplot, figure, file)


if __name__ == "__main__":
    raise SystemExit(main())
