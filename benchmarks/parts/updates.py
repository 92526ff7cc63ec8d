"""Learning on an engine that runs: how long a report takes into the answers of a new release, and how much of what is reported is used."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.parts.progress import say
from reef.experience import database
from reef.experience.store import ExperienceStore

BATCH = 8
"""Reports that make one update."""
USERS = 2
TOKENS = 12
WITHIN_S = 240.0
"""Bound on every wait; to train the model of 270M parameters on two cores beside the engine takes a quarter of it."""
TELL_EVERY_S = 20.0
END_S = 60.0
UNDECIDED = "inconclusive"
"""What the gate says where it was given no tasks: the candidate waits for somebody to promote it."""


@dataclass
class Learning:
    """A `reef serve` that trains LoRAs of the engine's model by SAO, and the users of its one scenario.

    The gate is given no tasks: what judging takes is up to them. Each candidate is promoted as soon as it waits for that.
    """

    url: str
    scenario: str
    store: ExperienceStore
    reported: dict[str, float] = field(default_factory=dict)
    """When each report was acknowledged, in Unix seconds, by its id."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask(self) -> int:
        """One question of a user; its number."""
        number = next(self._numbers)
        question = {"role": "user", "content": f"Say a number between 1 and {number + 10}."}
        self.send("/v1/chat/completions", {"messages": [question], "max_tokens": TOKENS}, session=f"user-{number}")
        return number

    def report(self, number: int) -> None:
        """Say how the answer was."""
        report = self.send("/reef/report", {"session": f"user-{number}", "score": float(number % 2)})
        self.reported[report["agent_record_id"]] = time.time()

    def update(self, known: int) -> dict[str, float]:
        """Wait for the next candidate, promote it and see it serve: seconds since the last report that it was made of.

        Args:
            known: how many candidates there were before it.
        """

        def waiting() -> Any:
            found = self.candidates()
            return found[known] if len(found) > known and found[known]["state"] == UNDECIDED else None

        candidate = wait_for(waiting, "a candidate")
        trained = time.time()
        release = self.send(f"/reef/scenarios/{self.scenario}/promote", {"candidate": candidate["id"], "reason": "the benchmark"})
        last = max(self.reported[report] for report in candidate["reports"])
        promoted, name = time.time(), f"{self.scenario}.{release['step']}"
        probe = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
        wait_for(lambda: self.send("/v1/chat/completions", probe, session="probe")["model"] == name, f"{name} to serve")
        return {"trained_s": trained - last, "served_s": time.time() - promoted, "update_s": time.time() - last}

    def candidates(self) -> list[dict[str, Any]]:
        """All of the scenario's, oldest first."""
        found: list[dict[str, Any]] = self.send(f"/reef/scenarios/{self.scenario}/candidates")["candidates"]
        return found

    def waiting(self) -> int:
        """Reports that the recipe has not done with: those of a batch that is being trained on among them."""
        return len(self.store.unconsumed_reports(self.scenario, "sao", limit=1000))

    def send(self, path: str, body: Any = None, *, session: str = "") -> Any:
        """The JSON that is answered."""
        headers = {"content-type": "application/json", "x-reef-scenario": self.scenario, **({"x-reef-session": session} if session else {})}
        request = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)


@contextlib.contextmanager
def learning(folder: Path, *, engine: str, model: str, base: Path, max_staleness: int) -> Iterator[Learning]:
    """Serve with a state of its own in ``folder``, on an engine that goes on afterwards."""
    folder.mkdir()
    scenario = f"stale-{max_staleness}"
    config = {
        "reef": {
            "recipe": "recipes.sao.recipe:SAORecipe", "batch_size": BATCH, "max_staleness": max_staleness,
            "options": {"loss": {"warm_up_steps": 0}},
        },
        "serving": {"vllm": {"attach": engine, "name": model}},
        "training": {"base": str(base), "rank": 8, "targets": ["q_proj", "v_proj"]},
        "storage": {"dir": str(folder / "state")},
        "scenarios": {"names": [scenario]},
    }  # fmt: skip
    (folder / "serve.yaml").write_text(yaml.safe_dump(config))
    log = folder / "serve.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "reef", "serve", "-c", str(folder / "serve.yaml"), "--port", "0"]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=inherited, start_new_session=True)

    def ready() -> str:
        if process.poll() is not None:
            raise RuntimeError(f"reef serve ended: {log.read_text()}")
        return log.read_text().partition("ready at ")[2].partition("\n")[0]

    try:
        url = wait_for(ready, "reef serve")
        found = Learning(url, scenario, ExperienceStore(database.connect(f"sqlite:///{folder / 'state' / 'reef.db'}")))
        wait_for(lambda: found.send("/reef/status")["engine"]["state"] == "ready", "the gateway to see the engine")
        yield found
    except Exception as error:
        said = {log.stem: log.read_text()[-2000:] for log in sorted((folder / "state" / "log").glob("*.log"))}
        raise RuntimeError("; ".join([str(error), *(f"the {who} said: {words}" for who, words in said.items() if words)])) from error
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its processes end with it
            process.wait(END_S)


def latencies(service: Learning, *, updates: int) -> list[dict[str, float]]:
    """Updates one after the other: a batch is reported, and nothing more until what came of it serves."""
    rows = []
    for number in range(updates):
        batch(service)
        rows.append(service.update(number))
        say(f"update {number + 1} of {updates}: trained after {rows[-1]['trained_s']:.1f} s, serving after {rows[-1]['update_s']:.1f} s")
    return rows


def batch(service: Learning) -> None:
    """The reports of one update, at once."""
    for _ in range(BATCH):
        service.report(service.ask())


def shares(service: Learning, *, pace_s: float) -> tuple[dict[str, float], dict[str, Any]]:
    """Users who go on reporting at a steady pace while what they reported before is trained on, until the new release serves.

    Returns:
        How long that update took, and what share of all that was done with was trained on.

    One report is held back while it would make a batch that is trained from a release about to go: nobody promotes by hand where there is
    a gate, and then the next batch begins after the release.
    """
    stop = threading.Event()
    failures: list[Exception] = []
    turns, reporting = threading.Lock(), threading.Lock()

    def users() -> None:
        nonlocal due
        while not stop.is_set():
            with turns:
                due = max(due, time.monotonic()) + pace_s
                mine = due
            if stop.wait(max(0.0, mine - time.monotonic())):
                return
            try:
                number = service.ask()
                with reporting:
                    while service.waiting() >= 2 * BATCH - 1 and not stop.wait(0.05):
                        pass
                    service.report(number)
            except Exception as error:
                failures.append(error)
                return

    known, before = len(service.candidates()), len(service.reported) - service.waiting()
    batch(service)
    due = time.monotonic()
    threads = [threading.Thread(target=users, daemon=True) for _ in range(USERS)]
    for thread in threads:
        thread.start()
    try:
        timed = service.update(known)
        say(f"update under reports: trained after {timed['trained_s']:.1f} s, serving after {timed['update_s']:.1f} s")
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    if failures:
        raise failures[0]
    wait_for(lambda: service.waiting() < BATCH, "the learner to have done with what was reported")
    left = settled(service.waiting)
    used = sum(len(candidate["reports"]) for candidate in service.candidates()[known:])
    done_with = len(service.reported) - left - before
    say(f"{used} of {done_with} reports were trained on")
    return timed, {"reports": done_with, "used": used, "share": round(used / done_with, 3)}


def settled(count: Callable[[], int], *, steady_s: float = 3.0) -> int:
    """A count, once it has stayed the same for a while: the learner passes over what is too old when it next looks."""
    last, since = count(), time.monotonic()
    while time.monotonic() - since < steady_s:
        time.sleep(0.2)
        if (now := count()) != last:
            last, since = now, time.monotonic()
    return last


def medians(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of several updates."""
    return {key: round(statistics.median(each[key] for each in found), 3) for key in found[0]}


def wait_for(look: Callable[[], Any], what: str) -> Any:
    """Look again and again until there is something."""
    began = told = time.monotonic()
    while time.monotonic() - began < WITHIN_S:
        if found := look():
            return found
        if time.monotonic() - told > TELL_EVERY_S:
            told = time.monotonic()
            say(f"waiting for {what}, {told - began:.0f} s")
        time.sleep(0.05)
    raise RuntimeError(f"waited {WITHIN_S:.0f} s in vain for {what}")
