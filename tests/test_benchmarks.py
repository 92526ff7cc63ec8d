"""The benchmarks run: what the figures come from cannot rot. What they measure is not judged here, only that nothing fails."""

from __future__ import annotations

import csv
import importlib.util
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.parts import bars, trend
from benchmarks.parts.prompts import MARK, template
from benchmarks.parts.traffic import Tally

ROOT = Path(__file__).parents[1]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A benchmark as its user starts it."""
    return subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)


def lines(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as source:
        return list(csv.DictReader(source))


@pytest.mark.alone
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_the_gateway_benchmark_measures_and_judges(tmp_path: Path) -> None:
    file = tmp_path / "gateway.csv"
    done = run("benchmarks.gateway", "--quick", "--only", "bare,reef", "--output", str(file))
    assert file.exists(), done.stdout + done.stderr
    rows = lines(file)
    assert {row["system"] for row in rows} == {"mock", "bare", "reef"}
    assert {(row["mode"], row["connections"]) for row in rows} == {(mode, count) for mode in ("json", "sse") for count in ("1", "32")}
    assert all(float(row["rps"]) > 0 and row["errors"] == "0" for row in rows)
    assert all(float(row["ttft_p50_ms"]) > 0 for row in rows if (row["mode"], row["connections"]) == ("sse", "1"))
    assert done.returncode == (1 if "MISSED" in done.stdout else 0)
    assert "the bare pass-through's requests/s (bar ≥ 0.7)" in done.stdout


@pytest.mark.alone
def test_the_soak_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "soak.csv"
    done = run("benchmarks.soak", "--quick", "--output", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["process"]: row for row in lines(file)}
    assert {"reef", "reef.gateway", "reef.learner"} <= set(rows)
    assert rows["reef.gateway"]["requests"] == "2000"
    assert len({row["requests"] for row in lines(tmp_path / "soak_samples.csv")}) == 200


@pytest.mark.parametrize("size", [1_000, 10_000, 100_000, 400_000])
def test_a_prompt_has_its_size_and_one_place_for_the_number(size: int) -> None:
    body = template(size, stream=True, run="1")
    assert size * 0.9 < len(body) < size * 1.2
    assert body.count(MARK.encode()) == 1


def test_the_interval_of_a_slope_holds_what_is_there() -> None:
    chance = random.Random(3)
    x = list(range(200))
    flat = trend.fit(x, [100 + chance.gauss(0, 1) for _ in x])
    assert flat.low < 0 < flat.high
    growing = trend.fit(x, [100 + 0.05 * number + chance.gauss(0, 1) for number in x])
    assert growing.grows
    assert growing.low < 0.05 < growing.high


def test_a_walk_without_aim_is_hardly_ever_called_growth() -> None:
    """Memory that moves in steps: neighbours are alike, and least squares alone would see growth in half of such walks."""
    chance = random.Random(5)
    called = 0
    for _ in range(200):
        level, walk = 0.0, []
        for _ in range(140):
            level = 0.9 * level + chance.gauss(0, 1)
            walk.append(level)
        called += trend.fit(list(range(140)), walk).grows
    assert called <= 20


def test_the_soak_sees_a_missing_record_a_growing_process_and_one_that_was_started_again() -> None:
    samples = [
        {
            "requests": number,
            "process": "keeper",
            "pid": 1 if number < 50 else 2,
            "rss_mib": number + number % 3,
            "descriptors": 7,
            "threads": 1,
        }
        for number in range(100)
    ]
    rows = soak.summarise(samples, warm_up=20)
    tally = Tally(asked=100_000, answered={"rec_1", "rec_2", "rec_3"}, left={"rec_4"}, reports={"rep_1"})
    stored = {"ends": {"rec_1": "complete", "rec_2": "truncated"}, "reports": set()}
    missing, left, reports, again, grows = soak.judge(rows, tally, stored, slopes=True)
    assert missing.startswith("2 of 3 receipts")
    assert left.startswith("1 of 1 receipts of streams that were left")
    assert reports.startswith("1 of 1 reports")
    assert again == "keeper was started again 1 times"
    assert grows.startswith("keeper: rss_mib grows")


def test_a_missed_bar_is_said_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    columns = {bar.column: "" for bar in bars.BARS}
    row = {"system": "reef", "mode": "json", "connections": 32, "prompt_kb": 1, "errors": 0, **columns}
    assert bars.report([{**row, "rps_vs_bare": 0.71}]) == 0
    assert bars.report([{**row, "rps_vs_bare": 0.69}]) == 1
    assert bars.report([{**row, "rps_vs_bare": 0.71, "errors": 1}]) == 1
    assert capsys.readouterr().out.count("MISSED") == 2


def test_a_turn_costs_the_same_however_long_the_session(tmp_path: Path) -> None:
    file = tmp_path / "turns.csv"
    done = run("benchmarks.turns", "--turns", "100", "--size-kb", "100", "--output", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    costs = {row["part"]: float(row["stored_bytes_a_turn"]) for row in lines(file)}
    assert costs["10/10"] < 1.1 * costs["2/10"]


@pytest.mark.alone
def test_the_chain_benchmark_measures(tmp_path: Path) -> None:
    file = tmp_path / "chain.csv"
    done = run("benchmarks.chain", "--quick", "--folder", str(tmp_path), "--output", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["what"] for row in lines(file)} >= {"propose", "settle", "head", "diff", "audit", "sha256sum", "publish", "copies"}


def test_the_starting_benchmark_measures(tmp_path: Path) -> None:
    file = tmp_path / "starting.csv"
    done = run("benchmarks.starting", "--only", "serve", "--rounds", "1", "--output", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = lines(file)
    assert float(row["healthz_s"]) > 0
    assert row["engine_s"] == row["answer_s"] == ""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed (make install-model)")
def test_the_sync_benchmark_measures_every_way_and_fails_no_request(tmp_path: Path) -> None:
    file = tmp_path / "sync.csv"
    command = [sys.executable, "-m", "benchmarks.sync", "--quick", "--only", "ways", "--output", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["way"]: row for row in lines(file)}
    assert rows.keys() == {"memcpy", "disk write", "disk read, cached", "gloo", "gloo, changed", "ipc", "disk", "lora"}
    assert int(rows["gloo"]["bytes"]) > int(rows["gloo, changed"]["bytes"]) > int(rows["lora"]["bytes"]) > 0
    assert float(rows["gloo"]["pause_s"]) > 0 == float(rows["lora"]["pause_s"])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed (make install-model)")
def test_the_sync_benchmark_follows_reports_into_releases(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.sync", "--quick", "--only", "updates", "--output", str(tmp_path / "sync.csv")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    default, strict = lines(tmp_path / "sync_updates.csv")
    assert float(default["update_s"]) > float(default["trained_s"]) > 0 < float(default["served_s"])
    assert default["max_staleness"] == "18" and float(default["share"]) == 1  # no record is that old
    assert strict["max_staleness"] == "0" and 0 < float(strict["share"]) <= 1
