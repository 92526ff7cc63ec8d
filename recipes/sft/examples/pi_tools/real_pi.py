"""The real Pi, given one job after the other, and what it left behind."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from benchmarks.parts import figures
from recipes.sft.examples.demo_weights.demo import console, head
from recipes.sft.examples.demo_weights.talk import DemoFailed, Gateway
from recipes.sft.examples.pi_tools.jobs import Job, Kind
from reef.harness.adapter import load_adapter
from reef.harness.episode import EpisodeRunner
from reef.harness.install import install
from reef.harness.sandbox import Sandbox
from reef.harness.tree import load
from reef.types import File

HERE = Path(__file__).resolve().parent
SCENARIO, EXPERT, LEARNER = "pi_tools", "expert", "reef"
"""The last two are what Pi asks for: an alias of serve.yaml, and what serves the scenario."""
RUN_S = 300.0
"""Bound on one run of Pi."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What Pi left behind."""

    job: Job
    session: str
    found: str | None
    """What is in the file that was asked for; None where there is no such file."""
    problem: str = ""
    """What kept Pi from coming to an end, if anything did."""

    @property
    def right(self) -> bool:
        """Exact match."""
        return self.found == self.job.expected


@dataclass(frozen=True, slots=True)
class Pi:
    """The real Pi, one run in a throw-away workspace after the other."""

    gateway: Gateway
    runner: EpisodeRunner

    @classmethod
    def at(cls, gateway: Gateway, *, folder: Path) -> Pi:
        """It, installed, and bound to a gateway."""
        adapter = load_adapter("pi")
        runner = EpisodeRunner(
            adapter=adapter,
            installed=install(adapter),
            sandbox=Sandbox("auto"),
            gateway_socket=folder / "reef" / "run" / "gateway.sock",
            gateway_url=gateway.url,
            token=os.environ.get("REEF_TOKEN", ""),
            model=LEARNER,
            timeout_s=RUN_S,
        )
        return cls(gateway, runner)

    def do_all(self, jobs: Sequence[Job], *, name: str, model: str = LEARNER, sampled: bool = False, at_once: int = 2) -> list[Outcome]:
        """Have jobs done, several at a time; the outcomes in their order.

        Args:
            name: of the sessions, before their number.
            sampled: with a harness whose answers differ from one try to the next. It is not the one that was released, so no release is
                named: whose weights answered is told by the engine.
        """
        runner, tree = dataclasses.replace(self.runner, model=model), {**load(HERE / "harness"), **(sampling() if sampled else {})}
        release = None if sampled else head(self.gateway, scenario=SCENARIO)

        def do(numbered: tuple[int, Job]) -> Outcome:
            session = f"{name}-{numbered[0]}"
            job = numbered[1]
            with runner.run(tree, prompt=job.prompt, files={}, scenario=SCENARIO, session=session, release=release) as episode:
                file = episode.workspace / job.file
                found = file.read_text(errors="replace").strip() if file.is_file() else None
                return Outcome(job, session, found, episode.detail if episode.fault else "")

        with ThreadPoolExecutor(at_once) as users:
            return list(users.map(do, enumerate(jobs)))


def sampling() -> dict[str, File]:
    """What is added to a harness for answers that differ from one try to the next."""
    return {"extensions/pi/sampled.ts": File((HERE / "sampled.ts").read_bytes())}


def by_kind(outcomes: Sequence[Outcome], *, seconds: float, candidate: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What is written down of a look at held-out jobs, a row for each kind of job."""
    verdict = (candidate or {}).get("verdict") or {}
    rows = []
    for kind, count in _kinds(outcomes).items():
        of_kind = [outcome for outcome in outcomes if outcome.job.kind == kind]
        row = {
            "kind": kind,
            "right": sum(outcome.right for outcome in of_kind),
            "wrote": sum(outcome.found is not None for outcome in of_kind),
            "broke_off": sum(bool(outcome.problem) for outcome in of_kind),
            "held_out": count,
            "seconds": round(seconds),
            "candidate": (candidate or {}).get("state", ""),
            "pairs": verdict.get("pairs", ""),
            "effect": round(verdict["effect"], 3) if verdict else "",
            "machine": figures.machine(),
        }
        console.print(f"  {kind}s that nobody showed: [bold]{row['right']} of {count} right[/], {row['wrote']} written to the right file")
        rows.append(row)
    return rows


def _kinds(outcomes: Sequence[Outcome]) -> Counter[Kind]:
    return Counter(outcome.job.kind for outcome in outcomes)


def show(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        mark = "[green]✓[/]" if outcome.right else "[red]✗[/]"
        found = "(no file)" if outcome.found is None else outcome.found[:80]
        problem = f" ({outcome.problem[:160]})" if outcome.problem else ""
        console.print(f"  {mark} {escape(outcome.job.prompt)} → {escape(found + problem)}")


def served_by_head(gateway: Gateway) -> bool | None:
    """Whether answers come from the head; None while another release answers, or, just after a start, none."""
    try:
        answer = gateway.ask("swap", "Hello", scenario=SCENARIO)
    except DemoFailed:  # the engine is ready, and does not have the head's weights yet
        return None
    return answer.model == f"{SCENARIO}.{head(gateway, scenario=SCENARIO)}" or None
