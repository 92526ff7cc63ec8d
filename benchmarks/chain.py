"""Whether a long chain stays as quick as a short one, and what publishing a large file costs.

    python -m benchmarks.chain [--releases 10000] [--quick] [--only chain,large]

A chain of releases of a 200-file harness, each with a candidate and a verdict, as the learner makes them: what it takes to propose, to
settle (commit, transaction, refs), to look the head up and to diff the last two releases, as the median of what is around 100, 1,000 and
10,000 releases; and the audit of all of it. Then a 2 GB safetensors file published beside `sha256sum` over it, in turns: time, and blocks
on the disk before and after. Writes benchmarks/results/chain.csv.

Bars: settle, head and diff at the end at most 1.5 times (and half a millisecond more than) what they are at 100; the large file in less
than 1.5 times the time of `sha256sum`, and on the disk once.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reef.artifacts.folders import take_in
from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import content_id
from reef.experience import schema as _experience  # noqa: F401 - registers its tables
from reef.experience.database import connect, create_tables
from reef.releases import mirror
from reef.releases.controller import Controller
from reef.releases.imports import bring_in
from reef.types import Component, Decision, File, Verdict

RESULTS = Path(__file__).resolve().parent / "results" / "chain.csv"
FILES = 200
AROUND = 25
"""Releases before and after a mark that its median is of."""
GROWTH, SLACK_MS, LARGE_RATIO = 1.5, 0.5, 1.5
PIECE = 8 << 20
ROUNDS = 3
PROMOTED = Verdict(
    Decision.PROMOTE, "measured", effect=1.0, low=0.0, high=1.0, pairs=9, wins=9, losses=0, evidence=99.0, alpha=0.05, seconds=0.0
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, judge, write; the exit status is the verdict."""
    parser = argparse.ArgumentParser(prog="chain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=10_000)
    parser.add_argument("--size-mb", type=int, default=2_000)
    parser.add_argument("--quick", action="store_true", help="60 releases and 20 MB; only run, the bars are not judged")
    parser.add_argument("--only", default="chain,large")
    parser.add_argument("--folder", type=Path, help="where to work; needs twice the size of the large file")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.releases, options.size_mb = 60, 20
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="reef-chain-", dir=options.folder) as name:
        if "chain" in options.only:
            rows += measure_chain(Path(name), releases=options.releases)
        if "large" in options.only:
            rows += measure_large(Path(name), size_bytes=options.size_mb * 1_000_000)
    machine = f"{os.cpu_count()} cores / {platform.system()} / Python {platform.python_version()}"
    write(options.output, [{**row, "machine": machine} for row in rows])
    missed = [] if options.quick else [bar for bar in judge(rows) if bar]
    for bar in missed:
        print(f"missed: {bar}")
    return 1 if missed else 0


def measure_chain(folder: Path, *, releases: int) -> list[dict[str, Any]]:
    """Publish that many releases; the times around each mark."""
    engine = connect(f"sqlite:///{folder / 'reef.db'}")
    create_tables(engine)
    controller = Controller(engine, ArtifactRepository(folder / "artifacts.git"))
    tree = {f"skills/skill-{number // 4}/file-{number % 4}.md": File(f"# File {number}\n".encode() * 40) for number in range(FILES)}
    controller.ensure_scenario("default", starter=tree)
    marks = [mark for mark in (100, 1_000, 10_000) if mark + AROUND <= releases] or [releases // 2]
    if releases - AROUND > marks[-1]:
        marks.append(releases - AROUND)
    spent: dict[int, dict[str, list[float]]] = {mark: {} for mark in marks}
    for step in range(2, releases + 1):
        path = f"skills/skill-{step % FILES // 4}/file-{step % 4}.md"
        tree = {**tree, path: File(f"# File of release {step}\n".encode() * 40)}
        times = publish(controller, tree, step=step)
        near = next((mark for mark in marks if abs(step - mark) <= AROUND), None)
        if near is not None:
            times["head"] = clock(lambda: controller.head("default"))
            times["diff"] = clock(lambda now=step: controller.diff("default", now - 1, now))  # type: ignore[misc]
            for what, value in times.items():
                spent[near].setdefault(what, []).append(value)
            if step == near + AROUND:
                medians = (f"{what} {statistics.median(values):.2f} ms" for what, values in spent[near].items())
                print(f"{near} releases: {', '.join(medians)}", flush=True)
    rows = [
        {"what": what, "at": mark, "value": round(statistics.median(values), 3), "unit": "ms"}
        for mark, kinds in spent.items()
        for what, values in kinds.items()
    ]
    started = time.perf_counter()
    problems = controller.verify("default")
    rows.append({"what": "audit", "at": releases, "value": round(time.perf_counter() - started, 2), "unit": "s"})
    if problems:
        raise SystemExit(f"the audit found {problems[0]}")
    started = time.perf_counter()
    controller.repair()
    rows.append({"what": "repair", "at": releases, "value": round(time.perf_counter() - started, 2), "unit": "s"})
    engine.dispose()
    for row in rows:
        print(f"{row['what']:>8} at {row['at']:>6}: {row['value']} {row['unit']}")
    return rows


def publish(controller: Controller, tree: dict[str, File], *, step: int) -> dict[str, float]:
    """One release as the learner makes it: the milliseconds of its two halves."""
    head = controller.head("default")
    identity = content_id(tree)

    def propose() -> Any:
        commit = controller.artifacts.commit(tree, parents=[head.commit], message=f"Candidate {step}")
        return controller.open_candidate(
            scenario="default", component=Component.HARNESS, recipe="bench", base_step=head.step,
            branch=mirror.candidate_branch("default", f"{step}"), commit=commit, content_id=identity, summary=f"Change {step}", reports=(),
        )  # fmt: skip

    kept: list[Any] = []
    times = {"propose": clock(lambda: kept.append(propose()))}
    times["settle"] = clock(lambda: controller.settle(kept[0], PROMOTED, expected_head=head.step, consumed=(f"r{step}",)))
    return times


def measure_large(folder: Path, *, size_bytes: int) -> list[dict[str, Any]]:
    """Publish a large file and hash it with sha256sum, in turns; the best of each, and the blocks on the disk."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    model = checkpoint / "model.safetensors"
    engine = connect(f"sqlite:///{folder / 'large.db'}")
    create_tables(engine)
    published, hashed, alone = [], [], []
    added = 0
    for number in range(ROUNDS):
        artifacts = ArtifactRepository(folder / f"large-{number}.git")  # each round the first time
        controller = Controller(engine, artifacts)
        controller.ensure_scenario(f"large-{number}", starter={"AGENTS.md": File(b"")})
        model.unlink(missing_ok=True)
        fill(model, size_bytes=size_bytes)
        before = used(folder)

        def one(controller: Controller = controller, name: str = f"large-{number}") -> None:
            tree = take_in(controller.artifacts, checkpoint)
            bring_in(controller, name, Component.MODEL, tree, summary="weights")

        hashed.append(clock(lambda: subprocess.run(["sha256sum", str(model)], check=True, capture_output=True, timeout=600)) / 1000)
        alone.append(clock(lambda: digest(model)) / 1000)
        published.append(clock(one) / 1000)
        added = max(added, used(folder) - before)
        shutil.rmtree(artifacts.path)
    engine.dispose()
    rows = [
        {"what": "sha256sum", "at": size_bytes, "value": round(min(hashed), 3), "unit": "s"},
        {"what": "publish", "at": size_bytes, "value": round(min(published), 3), "unit": "s"},
        {"what": "hashlib", "at": size_bytes, "value": round(min(alone), 3), "unit": "s"},
        {"what": "ratio to hashlib", "at": size_bytes, "value": round(min(published) / min(alone), 3), "unit": "times hashlib"},
        {"what": "ratio", "at": size_bytes, "value": round(min(published) / min(hashed), 3), "unit": "times sha256sum"},
        {"what": "copies", "at": size_bytes, "value": round(1 + added / size_bytes, 3), "unit": "on the disk, with the given one"},
    ]
    for row in rows:
        print(f"{row['what']:>9}: {row['value']} {row['unit']}")
    return rows


def digest(file: Path) -> str:
    """The hash pass alone, by the same library: where that uses instructions that sha256sum does not, the one ratio would flatter."""
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def fill(file: Path, *, size_bytes: int) -> None:
    """Random bytes, on the disk before anything is measured."""
    piece = os.urandom(PIECE)
    with file.open("wb") as output:
        while (left := size_bytes - output.tell()) > 0:
            output.write(piece[:left])
        output.flush()
        os.fsync(output.fileno())


def used(folder: Path) -> int:
    """Bytes on the disk, each file once however many names it has."""
    return int(subprocess.run(["du", "-s", "-B1", str(folder)], check=True, capture_output=True, text=True, timeout=600).stdout.split()[0])


def clock(work: Callable[[], object]) -> float:
    """The milliseconds it takes."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def judge(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What misses its bar."""
    missed = []
    for what in ("settle", "head", "diff"):
        values = [row["value"] for row in rows if row["what"] == what]
        if values and values[-1] > GROWTH * values[0] + SLACK_MS:
            missed.append(f"{what} grows from {values[0]} to {values[-1]} ms")
    found = {row["what"]: row["value"] for row in rows}
    if found.get("ratio", 0) >= LARGE_RATIO:
        missed.append(f"publishing takes {found['ratio']} times as long as sha256sum")
    if found.get("copies", 1) > 1.01:
        missed.append(f"{found['copies']} copies on the disk")
    return missed


def write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The table."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
