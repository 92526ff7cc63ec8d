"""A model of 135 million parameters learns to work in the real Pi: `python -m recipes.sft.examples.pi_tools.run`.

Another model (the rehearsal, which needs no key; any other does as well) works in Pi through the gateway, and whoever asked says that those
sessions demonstrate how it is done. They become a LoRA of the small model, the gate has the real Pi try it beside what serves, and it is
released. Before and after, the real Pi is given jobs that nobody showed, with the small model behind it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from benchmarks.parts import figures
from recipes.sft.examples.demo_weights.demo import chapter, console, head, learned, served
from recipes.sft.examples.demo_weights.talk import DemoFailed, Gateway, wait_for
from recipes.sft.examples.pi_tools.jobs import KINDS, Job, drawn
from reef.harness.adapter import load_adapter
from reef.harness.episode import EpisodeRunner
from reef.harness.install import install
from reef.harness.sandbox import Sandbox
from reef.harness.tree import load

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[3]
SCENARIO, EXPERT, LEARNER = "pi_tools", "expert", "reef"
"""The last two are what Pi asks for: an alias of serve.yaml, and what serves the scenario."""
BATCH = 48
"""``reef.batch_size``."""
AT_ONCE = 2
RUN_S = 300.0
"""Bound on one run of Pi."""
IMPORT_S, SWAP_S = 120.0, 120.0
TRIES = 3
"""How often the expert may try a job: a run can fail for want of this machine's time, too."""


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

    runner: EpisodeRunner

    @classmethod
    def at(cls, gateway: Gateway, *, folder: Path) -> Pi:
        """It, installed, and bound to a gateway."""
        adapter = load_adapter("pi")
        return cls(
            EpisodeRunner(
                adapter=adapter,
                installed=install(adapter),
                sandbox=Sandbox("auto"),
                gateway_socket=folder / "reef" / "run" / "gateway.sock",
                gateway_url=gateway.url,
                token=os.environ.get("REEF_TOKEN", ""),
                model=LEARNER,
                timeout_s=RUN_S,
            )
        )

    def do_all(self, jobs: Sequence[Job], *, name: str, model: str, release: int) -> list[Outcome]:
        """Have jobs done, several at a time; the outcomes in their order."""
        runner, tree = dataclasses.replace(self.runner, model=model), load(HERE / "harness")

        def do(numbered: tuple[int, Job]) -> Outcome:
            session = f"{name}-{numbered[0]}"
            job = numbered[1]
            with runner.run(tree, prompt=job.prompt, files={}, scenario=SCENARIO, session=session, release=release) as episode:
                file = episode.workspace / job.file
                found = file.read_text(errors="replace").strip() if file.is_file() else None
                return Outcome(job, session, found, episode.detail if episode.fault else "")

        with ThreadPoolExecutor(AT_ONCE) as users:
            return list(users.map(do, enumerate(jobs)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=CHECKOUT / ".pi-tools", help="where everything is kept; made anew")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv", help="where the figures are written to")
    parser.add_argument("--rounds", type=int, default=1, help="batches of demonstrations")
    parser.add_argument("--held-out", type=int, default=40, help="jobs that are tried before and after")
    options = parser.parse_args()
    try:
        with served(options.folder, config=HERE / "serve.yaml") as gateway:
            tell_story(gateway, options)
    except DemoFailed as error:
        console.print(f"[bold red]It failed:[/] {escape(str(error))}")
        console.print(f"Logs: {options.folder / 'reef' / 'log'} and {options.folder / 'serve.log'}")
        return 1
    return 0


def tell_story(gateway: Gateway, options: argparse.Namespace) -> None:
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    held_out, shown = drawn("check", options.held_out), drawn("shown", BATCH * options.rounds)
    import_harness(options.folder)
    pi = Pi.at(gateway, folder=options.folder)

    def look(demonstrated: int, candidate: dict[str, Any] | None) -> None:
        outcomes = pi.do_all(held_out, name=f"check-{demonstrated}", model=LEARNER, release=head(gateway, scenario=SCENARIO))
        for kind in dict.fromkeys(KINDS):
            of_kind = [outcome for outcome in outcomes if outcome.job.kind == kind]
            told = row(kind, of_kind, demonstrated=demonstrated, seconds=time.monotonic() - began, candidate=candidate)
            console.print(
                f"  {kind}s that nobody showed: [bold]{told['right']} of {len(of_kind)} right[/], {told['wrote']} written to the right file"
            )
            rows.append(told)
        show([outcome for outcome in outcomes if not outcome.right][:3])
        figures.write_csv(options.output, rows)

    chapter("Before anything is learned: the real Pi, with the small model behind it")
    look(0, None)
    for number in range(options.rounds):
        chapter(f"Another model works in Pi, and its sessions are demonstrations ({number + 1} of {options.rounds})")
        demonstrate(gateway, pi, shown[number * BATCH : (number + 1) * BATCH], name=f"shown-{number}")
        candidate = learned(gateway, number, scenario=SCENARIO)
        if candidate["state"] == "released":
            wait_for(partial(served_by_head, gateway), "the release to serve", bound_s=SWAP_S)
        look(BATCH * (number + 1), candidate)
    before, after = (
        sum(row["right"] for row in rows if row["demonstrations"] == demonstrated) for demonstrated in (0, BATCH * options.rounds)
    )
    console.print(
        f"\nRight before: {before} of {len(held_out)}; after: [bold]{after} of {len(held_out)}[/], in {time.monotonic() - began:.0f} s."
    )
    if after <= before:
        raise DemoFailed("it has not learned to work in Pi; the verdicts above say what the gate saw")


def row(kind: str, outcomes: Sequence[Outcome], *, demonstrated: int, seconds: float, candidate: dict[str, Any] | None) -> dict[str, Any]:
    """What is written down of one look."""
    verdict = (candidate or {}).get("verdict") or {}
    return {
        "demonstrations": demonstrated,
        "kind": kind,
        "right": sum(outcome.right for outcome in outcomes),
        "wrote": sum(outcome.found is not None for outcome in outcomes),
        "broke_off": sum(bool(outcome.problem) for outcome in outcomes),
        "held_out": len(outcomes),
        "seconds": round(seconds),
        "candidate": (candidate or {}).get("state", ""),
        "pairs": verdict.get("pairs", ""),
        "effect": round(verdict["effect"], 3) if verdict else "",
        "machine": figures.machine(),
    }


def served_by_head(gateway: Gateway) -> bool | None:
    """Whether answers come from the head; None while another release answers."""
    answer = gateway.ask("swap", "Hello", scenario=SCENARIO)
    return answer.model == f"{SCENARIO}.{head(gateway, scenario=SCENARIO)}" or None


def import_harness(folder: Path) -> None:
    """Release Pi with one tool and two sentences of system prompt: what the gate tries candidates with."""
    command = [str(Path(sys.executable).with_name("reef")), "release", "import", str(HERE / "harness"), "-s", SCENARIO]
    command += ["-c", str(HERE / "serve.yaml"), "--set", f"storage.dir={folder / 'reef'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_S, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise DemoFailed(f"the harness cannot be released: {(done.stderr or done.stdout).strip()}")
    console.print(f"  {escape(done.stdout.strip())}")


def demonstrate(gateway: Gateway, pi: Pi, jobs: Sequence[Job], *, name: str) -> None:
    """Have the expert do jobs, and vouch for what it did right."""
    waiting, vouched = list(jobs), 0
    for attempt in range(TRIES):
        outcomes = pi.do_all(waiting, name=f"{name}-{attempt}", model=EXPERT, release=head(gateway, scenario=SCENARIO))
        show(outcomes[:3])
        for outcome in outcomes:
            if outcome.right:
                body = {"session": outcome.session, "score": 1.0, "metadata": {"demonstrates": True}}
                gateway.post("/reef/report", body, {"x-reef-scenario": SCENARIO})
                vouched += 1
        waiting = [outcome.job for outcome in outcomes if not outcome.right]
        if not waiting:
            console.print(f"  … {vouched} in all, each reported as a demonstration")
            return
    raise DemoFailed(f"the expert did not do {waiting[0].prompt!r} in {TRIES} tries")


def show(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        mark = "[green]✓[/]" if outcome.right else "[red]✗[/]"
        found = "(no file)" if outcome.found is None else outcome.found[:80]
        problem = f" ({outcome.problem[:160]})" if outcome.problem else ""
        console.print(f"  {mark} {escape(outcome.job.prompt)} → {escape(found + problem)}")


if __name__ == "__main__":
    sys.exit(main())
