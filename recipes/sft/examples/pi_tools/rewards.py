"""After demonstrations, rewards: `python -m recipes.sft.examples.pi_tools.run --then-rewards`, or this module on a folder that `run` left.

Nobody shows anything now. The model that learned from demonstrations works in the real Pi itself, eight times at each job and not by the
likeliest answer; whether the right file is there is each session's score, 1 or 0, and nothing else is told. The jobs are dates in forms
that nobody demonstrated. The recipe `grpo` compares the tries at one job with each other, token by token as the engine told them, and the
gate has Pi judge what comes of it. Before and after, Pi is given the same held-out jobs: those of before, and dates in the other forms.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from benchmarks.parts import figures
from recipes.sft.examples.demo_weights.demo import chapter, console, learned, served
from recipes.sft.examples.demo_weights.talk import DemoFailed, Gateway, wait_for
from recipes.sft.examples.pi_tools.jobs import drawn
from recipes.sft.examples.pi_tools.real_pi import HERE, SCENARIO, Outcome, Pi, by_kind, served_by_head, show

CHECKOUT = HERE.parents[3]
BATCH, SIBLINGS = 56, 8
"""``reef.batch_size`` and ``reef.options.siblings`` of rewards.yaml."""
MOST_JOBS = 40
"""That are practised for one batch."""
AT_ONCE = 8
"""As many as the engine answers together."""
SWAP_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=CHECKOUT / ".pi-tools", help="what `run` left; it is learned on from there")
    parser.add_argument("--output", type=Path, default=HERE / "rewards.csv", help="where the figures are written to")
    parser.add_argument("--rounds", type=int, default=1, help="batches of scored sessions")
    parser.add_argument("--held-out", type=int, default=40, help="jobs of each sort that are tried before and after")
    options = parser.parse_args()
    try:
        go_on(options.folder, output=options.output, rounds=options.rounds, held_out=options.held_out)
    except DemoFailed as error:
        console.print(f"[bold red]It failed:[/] {escape(str(error))}")
        console.print(f"Logs: {options.folder / 'reef' / 'log'} and {options.folder / 'rewards.log'}")
        return 1
    return 0


def go_on(folder: Path, *, output: Path = HERE / "rewards.csv", rounds: int = 1, held_out: int = 40) -> None:
    """Have a model that learned from demonstrations practise, and look at what it can do before and after."""
    if not (folder / "reef").is_dir():
        raise DemoFailed(f"there is no state in {folder}; `python -m recipes.sft.examples.pi_tools.run` makes one")
    with served(folder, config=HERE / "rewards.yaml", fresh=False) as gateway:
        pi, rows, began = Pi.at(gateway, folder=folder), list[dict[str, Any]](), time.monotonic()
        asked = [*drawn("check", held_out), *drawn("practice check", held_out)]
        wait_for(partial(served_by_head, gateway), "what was learned before to serve", bound_s=SWAP_S)
        tried: list[Outcome] = []
        practised: list[dict[str, Any]] = []
        candidate: dict[str, Any] | None = None
        for number in range(rounds + 1):
            if number:
                chapter(f"It practises in Pi, and each session gets a score ({number} of {rounds})")
                settled = judged(gateway)
                tried = practise(pi, number=number)
                practised += by_job(tried, number=number)
                figures.write_csv(output.with_stem(f"{output.stem}_practised"), practised)
                candidate = learned(gateway, settled, scenario=SCENARIO)
                wait_for(partial(served_by_head, gateway), "the head to serve", bound_s=SWAP_S)
            chapter("Jobs that nobody showed" + (", and that it did not practise" if number else ", before it practises"))
            outcomes = pi.do_all(asked, name=f"look-{number}", at_once=AT_ONCE)
            found = by_kind(outcomes, seconds=time.monotonic() - began, candidate=candidate)
            rows += [{"round": number, "tries": len(tried), "solved": sum(each.right for each in tried), **row} for row in found]
            show([outcome for outcome in outcomes if not outcome.right][:6])
            figures.write_csv(output, rows)
    before, after = (sum(row["right"] for row in rows if row["round"] == number) for number in (0, rounds))
    console.print(f"\nRight before: {before} of {len(asked)}; after: [bold]{after} of {len(asked)}[/].")


def practise(pi: Pi, *, number: int) -> list[Outcome]:
    """Have job after job tried several times, until a batch of tries says something: where all or none solve it, none is better."""
    tried: list[Outcome] = []
    useful = 0
    for place, job in enumerate(drawn("practice", MOST_JOBS * number)[-MOST_JOBS:]):
        tries = pi.do_all([job] * SIBLINGS, name=f"practice-{number}-{place}", sampled=True, at_once=AT_ONCE)
        for outcome in tries:
            body = {"session": outcome.session, "score": float(outcome.right), "metadata": {"group": f"{number}-{place}"}}
            pi.gateway.post("/reef/report", body, {"x-reef-scenario": SCENARIO})
        solved = sum(outcome.right for outcome in tries)
        console.print(f"  {escape(job.prompt)}: solved in {solved} of {SIBLINGS} tries")
        tried += tries
        useful += SIBLINGS if 0 < solved < SIBLINGS else 0
        if useful >= BATCH:
            console.print(f"  … {sum(outcome.right for outcome in tried)} of {len(tried)} tries solved their job")
            return tried
    raise DemoFailed(f"at nearly every one of {MOST_JOBS} jobs either all tries solved it or none: scores say nothing about them")


def by_job(tried: Sequence[Outcome], *, number: int) -> list[dict[str, Any]]:
    """What is written down of practice, a row for each job."""
    solved = Counter({outcome.job.prompt: 0 for outcome in tried})
    solved.update(outcome.job.prompt for outcome in tried if outcome.right)
    return [{"round": number, "job": job, "tries": SIBLINGS, "solved": count} for job, count in solved.items()]


def judged(gateway: Gateway) -> int:
    """How many candidates there were that are settled."""
    found: Sequence[dict[str, Any]] = gateway.get(f"/reef/scenarios/{SCENARIO}/candidates")["candidates"]
    return sum(each["state"] not in ("proposed", "judging") for each in found)


if __name__ == "__main__":
    sys.exit(main())
