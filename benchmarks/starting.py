"""How long `reef serve` takes until it answers, with and without an engine of its own.

    python -m benchmarks.starting [--rounds 3] [--only serve,local] [--model smollm2-135m]

writes `benchmarks/results/starting.csv`: seconds from the command to the first `/healthz`, to the engine being ready, and to the end of the
first chat answer of one token; each round with a state folder of its own. `serve` has no engine, and an upstream where nobody is. The model
of `local` is made before the first round if it is not in `$REEF_CACHE` yet (`reef model fetch`), so that nothing is downloaded in what is
measured; its files are in the page cache by the second round.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.parts import figures
from benchmarks.parts.processes import NotStarted, running
from reef.serving.models import resolving

HERE = Path(__file__).parent
WITHIN_S = 300.0
POLL_S = 0.02
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "temperature": 0}


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="serve,local")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "starting.csv")
    asked = parser.parse_args()
    kinds = asked.only.split(",")
    if "local" in kinds and resolving.made_here(asked.model) and not resolving.is_there(asked.model):
        subprocess.run([sys.executable, "-m", "reef", "model", "fetch", asked.model], check=True)
    rows = []
    for kind in kinds:
        for number in range(1, asked.rounds + 1):
            with tempfile.TemporaryDirectory(prefix="reef-starting-") as folder:
                rows.append({"what": kind, "round": number, **measured(kind, folder=Path(folder), model=asked.model), **about(kind, asked)})
            print(rows[-1], flush=True)
    figures.write_csv(asked.output, rows)
    return 0


def about(kind: str, asked: argparse.Namespace) -> dict[str, str]:
    """What it was measured with."""
    return {"model": asked.model if kind == "local" else "", "machine": figures.machine()}


def measured(kind: str, *, folder: Path, model: str) -> dict[str, float | str]:
    """Start once, and end it."""
    with free_port() as port:
        pass
    more = ["--local", "--model", model] if kind == "local" else ["--upstream", "http://127.0.0.1:9/v1", "--model", "m"]
    command = [sys.executable, "-m", "reef", "serve", "--port", str(port), "--set", f"storage.dir={folder / 'state'}", *more]
    started = time.monotonic()
    with running(command, log=folder / "reef.log", ready=lambda: ask(port, "GET", "/healthz")[0] == 200):
        found: dict[str, float | str] = {"healthz_s": since(started), "engine_s": "", "answer_s": ""}
        if kind == "local":
            until(lambda: "the engine is ready" in (folder / "reef.log").read_text(errors="replace"), what="the engine")
            found["engine_s"] = since(started)
            until(lambda: ask(port, "POST", "/v1/chat/completions", CHAT)[0] == 200, what="an answer")
            found["answer_s"] = since(started)
        return found


def since(started: float) -> float:
    """Seconds that have passed."""
    return round(time.monotonic() - started, 2)


def until(there: Callable[[], bool], *, what: str) -> None:
    """Wait for something.

    Raises:
        NotStarted: it does not come.
    """
    deadline = time.monotonic() + WITHIN_S
    while not there():
        if time.monotonic() > deadline:
            raise NotStarted(f"{what} did not come within {WITHIN_S:g} s")
        time.sleep(POLL_S)


def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """One request; status 0 where nobody is there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
