"""The demo's figures: right answers on held-out dates after each batch, beside the control's, as CSV and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.parts import figures


def row(scores: Mapping[str, int], *, held_out: int, taught: int, seconds: float, candidate: Mapping[str, Any] | None) -> dict[str, Any]:
    """One point of the curve.

    Args:
        scores: right answers of both scenarios.
        taught: demonstrations that were reported so far.
        candidate: what was made of the last of them.
    """
    verdict = (candidate or {}).get("verdict") or {}
    return {
        "demonstrations": taught,
        "right": scores["dates"],
        "control_right": scores["control"],
        "held_out": held_out,
        "seconds": round(seconds),
        "candidate": (candidate or {}).get("state", ""),
        "pairs": verdict.get("pairs", ""),
        "effect": round(verdict["effect"], 3) if verdict else "",
        "machine": figures.machine(),
    }


def write(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """``curve.csv``, and ``curve.svg`` where matplotlib is installed."""
    figures.write_csv(folder / "curve.csv", rows)
    plot = figures.pyplot()
    if plot is None:
        return
    figure, axes = plot.subplots(figsize=(6, 3.2))
    taught = [row["demonstrations"] for row in rows]
    for key, label in (("right", "learns from reports"), ("control_right", "control: the same model, no reports")):
        axes.plot(taught, [100 * row[key] / row["held_out"] for row in rows], marker="o", markersize=4, linewidth=1, label=label)
    for point in rows:
        if point["candidate"]:
            axes.annotate(point["candidate"], (point["demonstrations"], 100 * point["right"] / point["held_out"]), fontsize=7, va="top")
    axes.set_xlabel("demonstrations reported")
    axes.set_ylabel(f"exact match on {rows[0]['held_out']} held-out dates (%)")
    axes.set_ylim(-3, 103)
    axes.legend(fontsize=7, frameon=False)
    figures.save(plot, figure, folder / "curve.svg")
