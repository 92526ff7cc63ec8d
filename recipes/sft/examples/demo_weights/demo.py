"""A model that learns from its users, end to end on two CPU cores, told as a short story: `make demo-weights`.

A small instruct model is served by Reef's own engine. Users ask it for dates as YYYY-MM-DD and say what it should have answered; each batch
of that becomes a LoRA, the gate judges it on dates that nobody showed, and the engine takes it up while it serves. A second scenario asks
the same and never reports: the control. At the end an old release is brought back, and says to the bit what it said before.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from recipes.sft.examples.demo_weights import curve
from recipes.sft.examples.demo_weights.dates import Job, drawn, right
from recipes.sft.examples.demo_weights.talk import Answer, DemoFailed, Gateway, wait_for

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[3]
TAUGHT, CONTROL = "dates", "control"
BATCH = 48
"""``reef.batch_size``."""
READY_WITHIN_S, LEARN_WITHIN_S = 900.0, 900.0
CLEAR_RISE = 0.25
"""By how much the share of right answers has to rise above the control's, for the story to have a good end."""
console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=CHECKOUT / ".demo-weights", help="where everything is kept; made anew")
    parser.add_argument("--output", type=Path, default=HERE, help="where the curve is written to")
    parser.add_argument("--rounds", type=int, default=2, help="batches that users report on")
    parser.add_argument("--held-out", type=int, default=60, help="dates that are asked after each round")
    options = parser.parse_args()
    try:
        with served(options.folder) as gateway:
            tell_story(gateway, options)
    except DemoFailed as error:
        console.print(f"[bold red]The demo failed:[/] {escape(str(error))}")
        console.print(f"Logs: {options.folder / 'reef' / 'log'} and {options.folder / 'serve.log'}")
        return 1
    return 0


@contextlib.contextmanager
def served(folder: Path, *, config: Path = HERE / "serve.yaml", fresh: bool = True) -> Iterator[Gateway]:
    """`reef serve` on a state folder, stopped at the end.

    Args:
        fresh: make the folder anew; otherwise what was learned before is still there.
    """
    if fresh and folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    chapter("Serve a small model")
    console.print(f"  [dim]$ reef serve -c {os.path.relpath(config, CHECKOUT)}[/]")
    command = [str(Path(sys.executable).with_name("reef")), "serve", "-c", str(config), "--port", "0"]
    command += ["--set", f"storage.dir={folder / 'reef'}"]
    log = folder / f"{config.stem}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)

    def ready() -> str | None:
        text = log.read_text(errors="replace")
        if process.poll() is not None:
            raise DemoFailed(f"reef serve ended: {text.strip()}")
        return text.split("ready at ", 1)[1].split()[0] if "ready at " in text else None

    try:
        gateway = Gateway(wait_for(ready, "reef serve to be ready", bound_s=60))
        began = time.monotonic()
        wait_for(
            lambda: gateway.get("/reef/status").get("engine", {}).get("state") == "ready" or None, "the engine", bound_s=READY_WITHIN_S
        )
        console.print(f"  the engine is ready after {time.monotonic() - began:.0f} s (the first time the model is fetched, 93 MB)")
        yield gateway
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)


def tell_story(gateway: Gateway, options: argparse.Namespace) -> None:
    began, rows = time.monotonic(), []
    held_out, shown = drawn("curve", options.held_out), drawn("shown", BATCH * options.rounds)

    def look(taught: int, candidate: dict[str, Any] | None) -> None:
        scores = {scenario: score(gateway, scenario, held_out) for scenario in (TAUGHT, CONTROL)}
        rows.append(curve.row(scores, held_out=len(held_out), taught=taught, seconds=time.monotonic() - began, candidate=candidate))
        console.print(f"  on {len(held_out)} dates that nobody showed: [bold]{scores[TAUGHT]} right[/], the control {scores[CONTROL]}")

    chapter("Before anything is learned")
    look(0, None)
    remembered: dict[int, list[list[float]]] = {}
    for number in range(options.rounds):
        chapter(f"Users ask, and say what the answer should have been ({number + 1} of {options.rounds})")
        use(gateway, shown[number * BATCH : (number + 1) * BATCH])
        candidate = learned(gateway, number)
        if candidate["state"] == "released":
            step = head(gateway)
            answer = wait_for(partial(served_by, gateway, step), f"release {step} to serve", bound_s=120)
            console.print(f"  swapped while it serves: answers come from [bold]{answer.model}[/]")
            remembered[step] = log_probabilities(gateway)
        look(BATCH * (number + 1), candidate)
    if not remembered:
        raise DemoFailed("no candidate was released; the verdicts above say why")
    roll_back(gateway, remembered)
    curve.write(rows, options.output)
    rise = (rows[-1]["right"] - rows[-1]["control_right"]) / len(held_out)
    if rise < CLEAR_RISE:
        raise DemoFailed(f"the share of right answers is only {rise:.0%} above the control's")
    console.print(
        f"\n[bold green]It learned[/]: {rows[0]['right']} → {rows[-1]['right']} of {len(held_out)}, in {time.monotonic() - began:.0f} s."
    )


def score(gateway: Gateway, scenario: str, jobs: Sequence[Job]) -> int:
    """How many are answered exactly right."""
    answers = gateway.ask_all([(f"check-{number}", job.prompt) for number, job in enumerate(jobs)], scenario=scenario)
    return sum(right(answer.text, job) for answer, job in zip(answers, jobs, strict=True))


def use(gateway: Gateway, jobs: Sequence[Job]) -> None:
    """Ask as users do; each says how it went, and what was expected."""
    answers = gateway.ask_all([(f"user-{job.expected}", job.prompt) for job in jobs], scenario=TAUGHT)
    for answer, job in zip(answers, jobs, strict=True):
        passed = right(answer.text, job)
        gateway.report(answer, score=float(passed), demonstration=job.expected, scenario=TAUGHT)
    for answer, job in list(zip(answers, jobs, strict=True))[:3]:
        mark = "[green]✓[/]" if right(answer.text, job) else "[red]✗[/]"
        console.print(f"  {mark} {escape(job.prompt)} → {escape(answer.text)}")
    console.print(f"  … and {len(jobs) - 3} more, each reported with a score and the right answer")


def learned(gateway: Gateway, before: int, *, scenario: str = TAUGHT) -> dict[str, Any]:
    """The candidate that is made of what was reported, once it is settled."""

    def settled() -> dict[str, Any] | None:
        found = gateway.get(f"/reef/scenarios/{scenario}/candidates")["candidates"]
        done = [each for each in found if each["state"] not in ("proposed", "judging")]
        return done[-1] if len(done) > before else None

    began = time.monotonic()
    found: dict[str, Any] = gateway.get(f"/reef/candidates/{wait_for(settled, 'a candidate', bound_s=LEARN_WITHIN_S)['id']}")
    colour = "green" if found["state"] == "released" else "red"
    console.print(f"  [bold {colour}]{found['state']}[/] after {time.monotonic() - began:.0f} s: {escape(found['summary'])}")
    if verdict := found["verdict"]:
        console.print(
            f"  the gate: {verdict['pairs']} pairs in {verdict['seconds']:.0f} s, {verdict['wins']} won, {verdict['losses']} lost,"
            f" effect {verdict['effect']:+.2f} in [{verdict['low']:+.2f}, {verdict['high']:+.2f}]"
        )
    console.print(f"  {escape(found['reason'])}")
    return found


def head(gateway: Gateway, *, scenario: str = TAUGHT) -> int:
    """The step of the release that serves."""
    return int(gateway.get(f"/reef/scenarios/{scenario}/releases")["head"])


def served_by(gateway: Gateway, step: int) -> Answer | None:
    """An answer of this release; None while another one answers."""
    answer = gateway.ask("swap", drawn("rollback", 1)[0].prompt, scenario=TAUGHT)
    return answer if answer.model == f"{TAUGHT}.{step}" else None


def log_probabilities(gateway: Gateway) -> list[list[float]]:
    """What the model says of its answers to a few dates, one after the other: how it rounds depends on what is computed together."""
    return [gateway.ask("probe", job.prompt, scenario=TAUGHT, alone=True).logprobs for job in drawn("rollback", 4)]


def roll_back(gateway: Gateway, remembered: dict[int, list[list[float]]]) -> None:
    chapter("Bring an old release back")
    old, last = min(remembered), max(remembered)
    console.print(f"  [dim]$ reef rollback {old} -s {TAUGHT}[/]")
    step = int(gateway.post(f"/reef/scenarios/{TAUGHT}/rollback", {"step": old})["step"])
    wait_for(partial(served_by, gateway, step), f"release {step} to serve", bound_s=120)
    now = log_probabilities(gateway)
    if now != remembered[old]:
        raise DemoFailed(f"release {step} has the weights of release {old}, and gives other log-probabilities")
    console.print(f"  release {step} has the weights of release {old}: {sum(map(len, now))} log-probabilities are equal to the bit")
    if last != old and now == remembered[last]:
        raise DemoFailed(f"release {last} gives the log-probabilities of release {old}: nothing was swapped")


_chapters = iter(range(1, 100))


def chapter(title: str) -> None:
    console.print(f"\n[bold]{next(_chapters)}. {title}[/]")


if __name__ == "__main__":
    sys.exit(main())
