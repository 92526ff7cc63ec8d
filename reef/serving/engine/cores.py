"""Which cores the engines of one `reef serve` compute on, on a machine without a GPU, so that they are not in each other's way.

By itself each of them takes the same ones: vLLM's ``auto`` is all cores of the first memory node but the last, of two the first. An
engine's threads wait for each other after every layer, so that one core which is shared holds up all of them. The engine that full weights
are judged on therefore has cores of its own: those of another memory node where there is one, else a quarter of all, at least one.

Source of what ``auto`` does: ``vllm/utils/ompmultiprocessing.py`` of vLLM 0.32.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
AUTO = "auto"
SHARE = 4
"""Judging gets one core in this many."""
SYSTEM = Path("/sys/devices/system/cpu")


def serving(*, judged: bool) -> str:
    """The cores of the engine that serves, for :data:`VARIABLE`: as the environment of this process has it, or as :func:`split` does.

    Args:
        judged: whether an engine to judge on may run beside it.
    """
    return os.environ.get(VARIABLE) or (split(nodes())[0] if judged else AUTO)


def judging() -> str:
    """The same of the engine that full weights are judged on."""
    return os.environ.get(VARIABLE) or split(nodes())[1]


def split(nodes: Sequence[Sequence[int]]) -> tuple[str, str]:
    """Cores to serve with, and others to judge with; the same for both where there is only one.

    Args:
        nodes: the cores of each memory node.
    """
    first = nodes[0]
    if len(nodes) > 1:
        return AUTO, _told(nodes[1])
    if len(first) < 2:
        return AUTO, AUTO
    kept = max(1, len(first) // SHARE)
    return _told(first[:-kept]), _told(first[-kept:])


def nodes(system: Path = SYSTEM) -> list[list[int]]:
    """The cores that this process may run on, by memory node, each by the number of its last thread, as vLLM counts them."""
    found: dict[int, dict[tuple[str, str], int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        folder = system / f"cpu{cpu}"
        core = (_read(folder / "topology" / "physical_package_id"), _read(folder / "topology" / "core_id") or str(cpu))
        node = next((int(place.name.removeprefix("node")) for place in folder.glob("node[0-9]*")), 0)
        found.setdefault(node, {})[core] = cpu
    return [sorted(cores.values()) for _, cores in sorted(found.items())]


def _told(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""
