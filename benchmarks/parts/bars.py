"""What the gateway must reach beside the others, and whether it does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.parts.figures import Row

MIN_CORES_FOR_TWO_WORKERS = 6
"""Load, mock and two gateways with a keeper each want a core of their own; with fewer, two workers cannot show what they are worth."""


@dataclass(frozen=True)
class Bar:
    """A bound on one column of a system's lines."""

    what: str
    system: str
    column: str
    bound: float
    connections: int
    at_most: bool = False
    unit: str = "×"

    def met(self, value: float) -> bool:
        """Whether ``value`` is on the right side."""
        return value <= self.bound if self.at_most else value >= self.bound


BARS = (
    Bar("p50 over the bare pass-through's", "reef", "p50_over_bare_ms", 1.0, 1, at_most=True, unit="ms"),
    Bar("time to the first event over the mock's alone", "reef", "added_ttft_ms", 1.0, 1, at_most=True, unit="ms"),
    Bar("the bare pass-through's requests/s", "reef", "rps_vs_bare", 0.7, 32),
    Bar("reef-infra's requests/s", "reef", "rps_vs_reef-infra", 10.0, 32),
    Bar("LiteLLM's requests/s", "reef", "rps_vs_litellm", 30.0, 32),
    Bar("Portkey's requests/s", "reef", "rps_vs_portkey", 2.0, 32),
    Bar("one worker's requests/s", "reef-2", "rps_vs_reef", 1.6, 32),
)


def report(rows: Sequence[Row]) -> int:
    """Print every bar for every load it holds for; 1 if one is missed or an exchange with Reef failed."""
    missed = 0
    cores = os.cpu_count() or 1
    for bar in BARS:
        for row in rows:
            if row["system"] != bar.system or row["connections"] != bar.connections or row[bar.column] == "":
                continue
            met = bar.met(row[bar.column])
            word = "met" if met else "MISSED"
            if bar.system == "reef-2" and cores < MIN_CORES_FOR_TWO_WORKERS:
                met, word = True, f"not judged: {cores} cores"
            missed += not met
            sign = "≤" if bar.at_most else "≥"
            where = f"{row['mode']:4} c={row['connections']:<3} {row['prompt_kb']:>3} kB"
            print(f"{where}  {row[bar.column]:8.2f} {bar.unit} {bar.what} (bar {sign} {bar.bound:g}): {word}")
    failed = sum(row["errors"] for row in rows if row["system"].startswith("reef") and row["system"] != "reef-infra")
    if failed:
        print(f"{failed} exchanges with Reef failed: MISSED")
    return 1 if missed or failed else 0
