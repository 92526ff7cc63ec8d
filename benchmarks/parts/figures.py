"""How figures are written down: as CSV, each line with the machine it was measured on, and as a plot where matplotlib is installed."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def machine() -> str:
    """This machine, in words."""
    memory_gib = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return f"{os.cpu_count()} cores / {memory_gib} GiB / {platform.system()} / Python {platform.python_version()}"


def write_csv(file: Path, rows: Sequence[Row]) -> None:
    """Write rows that all have the same columns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"written to {file}")


def markdown(rows: Sequence[Row], *, connections: int = 32) -> str:
    """The lines of one number of connections, as the table of the README."""
    others = {"bare": "the bare pass-through's", "reef-infra": "reef-infra's", "litellm": "LiteLLM's", "portkey": "Portkey's"}
    added = {(row["system"], row["mode"], row["prompt_kb"]): row["added_p50_ms"] for row in rows if row["connections"] == 1}
    heads = [f"{connections} connections", "requests/s", *(f"of {name}" for name in others.values()), "CPU a request"]
    lines = [[*heads, "added p50, 1 connection"], ["---"] * (len(heads) + 1)]
    for row in rows:
        if row["system"] not in ("reef", "reef-off", "reef-2") or row["connections"] != connections:
            continue
        kind = {"reef": "", "reef-off": ", nothing kept", "reef-2": ", two workers"}[row["system"]]
        mode = "JSON" if row["mode"] == "json" else "streamed"
        ratios = [f"{row[f'rps_vs_{other}']:.3g} ×" if row[f"rps_vs_{other}"] != "" else "–" for other in others]
        alone = added.get((row["system"], row["mode"], row["prompt_kb"]), "")
        ends = [f"{row['cpu_ms']} ms" if row["cpu_ms"] != "" else "–", f"{alone} ms" if alone != "" else "–"]
        lines.append([f"{mode}, {row['prompt_kb']} kB{kind}", f"{row['rps']:,.0f}", *ratios, *ends])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pyplot() -> Any:
    """matplotlib's pyplot, set to write small SVG files that are the same for the same figures; None where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return None
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "reef", "font.size": 9, "axes.spines.top": False})
    matplotlib.rcParams["axes.spines.right"] = False
    from matplotlib import pyplot as found

    return found


def save(plot: Any, figure: Any, file: Path) -> None:
    """Write a figure, without the date, so that the same figures give the same file."""
    figure.savefig(file, metadata={"Date": None}, bbox_inches="tight")
    plot.close(figure)
    print(f"written to {file}")


def plot_gateway(rows: Sequence[Row], file: Path) -> None:
    """Requests a second at 32 connections and the time added at one, system by system."""
    plot = pyplot()
    if plot is None:
        return
    figure, (left, right) = plot.subplots(1, 2, figsize=(10, 3.6))
    small = min(row["prompt_kb"] for row in rows)
    for axes, connections, key, title in (
        (left, 32, "rps", "requests/s, 32 connections"),
        (right, 1, "added_p50_ms", "added to the p50, 1 connection (ms)"),
    ):
        shown = [row for row in rows if row["connections"] == connections and row["prompt_kb"] == small and row["system"] != "mock"]
        systems = list(dict.fromkeys(row["system"] for row in shown))
        for offset, mode in ((-0.2, "json"), (0.2, "sse")):
            values = {row["system"]: row[key] for row in shown if row["mode"] == mode and row[key] != ""}
            places = [systems.index(system) + offset for system in values]
            bars = axes.barh(places, list(values.values()), height=0.38, label="JSON" if mode == "json" else "streamed, 20 events")
            axes.bar_label(bars, fmt="%.4g", padding=2, fontsize=7)
        axes.set_yticks(range(len(systems)), systems)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_title(f"{title}, {small} kB prompts", fontsize=9)
    right.legend(fontsize=7, frameon=False)
    save(plot, figure, file)


def plot_soak(samples: Sequence[Row], file: Path) -> None:
    """Memory of each process over the requests answered."""
    plot = pyplot()
    if plot is None:
        return
    figure, axes = plot.subplots(figsize=(7, 3.2))
    for name in dict.fromkeys(row["process"] for row in samples):
        mine = [row for row in samples if row["process"] == name]
        axes.plot([row["requests"] for row in mine], [row["rss_mib"] for row in mine], label=name, linewidth=1)
    axes.set_xlabel("requests")
    axes.set_ylabel("resident memory (MiB)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, frameon=False)
    save(plot, figure, file)
