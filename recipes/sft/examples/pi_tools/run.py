"""A model of 135 million parameters learns to work in the real Pi: `python -m recipes.sft.examples.pi_tools.run`.

Another model (the rehearsal, which needs no key; any other does as well) works in Pi through the gateway, and whoever asked says that those
sessions demonstrate how it is done. They become a LoRA of the small model, the gate has the real Pi try it beside what serves, and it is
released. Before and after, the real Pi is given jobs that nobody showed, with the small model behind it.

`--then-rewards` goes on from there: see :mod:`recipes.sft.examples.pi_tools.rewards`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from benchmarks.parts import figures
from recipes.sft.examples.demo_weights.demo import chapter, console, learned, served
from recipes.sft.examples.demo_weights.talk import DemoFailed, Gateway, wait_for
from recipes.sft.examples.pi_tools import rewards
from recipes.sft.examples.pi_tools.jobs import Job, drawn
from recipes.sft.examples.pi_tools.real_pi import EXPERT, HERE, SCENARIO, Pi, by_kind, served_by_head, show

CHECKOUT = HERE.parents[3]
BATCH = 48
"""``reef.batch_size``."""
IMPORT_S, SWAP_S = 120.0, 120.0
TRIES = 3
"""How often the expert may try a job: a run can fail for want of this machine's time, too."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=CHECKOUT / ".pi-tools", help="where everything is kept; made anew")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv", help="where the figures are written to")
    parser.add_argument("--rounds", type=int, default=1, help="batches of demonstrations")
    parser.add_argument("--held-out", type=int, default=40, help="jobs that are tried before and after")
    parser.add_argument("--then-rewards", action="store_true", help="afterwards, have it practise, and learn from how that went")
    options = parser.parse_args()
    try:
        with served(options.folder, config=HERE / "serve.yaml") as gateway:
            tell_story(gateway, options)
        if options.then_rewards:
            rewards.go_on(options.folder, held_out=options.held_out)
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
        outcomes = pi.do_all(held_out, name=f"check-{demonstrated}")
        found = by_kind(outcomes, seconds=time.monotonic() - began, candidate=candidate)
        rows.extend({"demonstrations": demonstrated, **row} for row in found)
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
        outcomes = pi.do_all(waiting, name=f"{name}-{attempt}", model=EXPERT)
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


if __name__ == "__main__":
    sys.exit(main())
