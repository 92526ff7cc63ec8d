"""The main job, end to end on real parts, told as a short story: `make demo`.

A gateway is served, Pi is installed from it through the pipe, tasks run through `reef-pi`, what failed is reported, Cordis proposes, the
real Pi tries each proposal against the head, the gate decides, the next launch offers the update, and the same tasks pass.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
SCENARIO = "demo"
LEARN_WITHIN_S = 900.0
console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Job:
    """One thing the user asks Pi to do, and what they expect to find."""

    prompt: str
    file: str
    expected: str
    feedback: str


ISO = "Dates must be written as YYYY-MM-DD in our files."
JOBS = (
    Job("Write the date 7 March 2024 to date.txt", "date.txt", "2024-03-07", ISO),
    Job("Write the sum of 17 and 25 to sum.txt", "sum.txt", "42", "The sum is wrong."),
    Job("Write the date 21 July 2023 to date.txt", "date.txt", "2023-07-21", ISO),
)


class DemoFailed(Exception):
    """The story did not end as it should; the message says where."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", default="", help="an OpenAI-compatible server instead of the rehearsal model")
    parser.add_argument("--model", default="")
    parser.add_argument("--key-env", default="", help="environment variable with the upstream's key")
    parser.add_argument("--keep", action="store_true", help="leave the service running")
    parser.add_argument("--folder", type=Path, default=CHECKOUT / ".demo", help="where everything is kept; made anew")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        with served(options) as gateway:
            tell_story(gateway, rehearsal=not options.upstream)
            console.print(f"\n[bold green]The loop is closed[/] in {time.monotonic() - started:.0f} s.")
            say_what_next(gateway, keep=options.keep)
    except DemoFailed as error:
        console.print(f"[bold red]The demo failed:[/] {escape(str(error))}")
        console.print(f"Logs: {options.folder / 'reef' / 'log'} and {options.folder / 'serve.log'}")
        return 1
    return 0


@dataclass(frozen=True)
class Gateway:
    """The running service and the user's machine beside it."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def environment(self) -> dict[str, str]:
        """The user's: a home of its own, so that the demo leaves nothing on this machine."""
        home = self.folder / "home"
        return {**os.environ, "HOME": str(home), "REEF_HOME": str(home / ".reef"), "REEF_UPDATE": "never", "REEF_URL": self.url}

    @property
    def pi(self) -> str:
        return str(self.folder / "home" / ".reef" / "bin" / "reef-pi")

    def get(self, path: str) -> Any:
        request = urllib.request.Request(self.url + path)  # noqa: S310 - our own gateway
        if os.environ.get("REEF_TOKEN"):
            request.add_header("authorization", f"Bearer {os.environ['REEF_TOKEN']}")
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)

    def reef(self, *arguments: str) -> str:
        """What a `reef` command prints."""
        command = [str(Path(sys.executable).with_name("reef")), *arguments]
        return run(command, environment={**self.environment, "REEF_SCENARIO": SCENARIO, "COLUMNS": "140"}, what=f"reef {arguments[0]}")


@contextlib.contextmanager
def served(options: argparse.Namespace) -> Iterator[Gateway]:
    """`reef serve` on a fresh state folder, stopped at the end unless it is to be kept."""
    folder: Path = options.folder
    if folder.exists():
        shutil.rmtree(folder)
    (folder / "home").mkdir(parents=True)
    (folder / "work").mkdir()
    port = 8900 if port_is_free(8900) else 0
    command = [str(Path(sys.executable).with_name("reef")), "serve", "-c", str(HERE / "serve.yaml"), "--port", str(port)]
    command += ["--set", f"storage.dir={folder / 'reef'}"]
    for flag, value in (("--upstream", options.upstream), ("--model", options.model), ("--upstream-key-env", options.key_env)):
        command += [flag, value] if value else []
    chapter(1, "Serve")
    show_command("reef serve -c " + os.path.relpath(HERE / "serve.yaml", CHECKOUT))
    log = folder / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)
    kept = False
    try:
        url = wait_for(lambda: ready_url(log, process), "reef serve to be ready", bound_s=30)
        console.print(f"  ready at {url}")
        yield Gateway(url, folder, process)
        kept = options.keep
    finally:
        if not kept:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(40)


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def ready_url(log: Path, process: subprocess.Popen[bytes]) -> str | None:
    text = log.read_text(errors="replace")
    if "ready at " in text:
        return text.split("ready at ", 1)[1].split()[0]
    if process.poll() is not None:
        raise DemoFailed(f"reef serve ended: {text.strip()}")
    return None


def tell_story(gateway: Gateway, *, rehearsal: bool) -> None:
    if rehearsal:
        console.print("  The model is the [bold]rehearsal[/]: a deterministic stand-in, no key and no GPU. Everything else is real.")
    install_pi(gateway)
    chapter(3, "Work, and say how it went")
    failed = [job for job in JOBS if not do_and_report(gateway, job)]
    if not failed:
        console.print("  Nothing failed, so there is nothing to learn: this model already does these tasks as the house wants.")
        return
    if len(failed) < 2:
        raise DemoFailed("one task failed, but the demo's batch is two reports: send another with `reef-pi report`")
    candidates = watch_learning(gateway)
    if not any(candidate["state"] == "released" for candidate in candidates):
        raise DemoFailed("no candidate was released; see the evidence above")
    take_update(gateway)
    chapter(6, "The same tasks again")
    still_failing = [job.prompt for job in JOBS if not do(gateway, job)]
    if still_failing:
        raise DemoFailed(f"still failing: {', '.join(still_failing)}")


def install_pi(gateway: Gateway) -> None:
    chapter(2, "Install Pi through the gateway")
    pipe = f"curl -fsS -H \"Authorization: Bearer $REEF_TOKEN\" '{gateway.url}/reef/harness/install?adapter=pi&scenario={SCENARIO}' | bash"
    show_command(pipe)
    began = time.monotonic()
    environment = {"REEF_TOKEN": "", **gateway.environment}
    run(["bash", "-o", "pipefail", "-c", pipe], environment=environment, what="the install pipe", bound_s=600, echo=True)
    console.print(f"  installed in {time.monotonic() - began:.0f} s")


def do(gateway: Gateway, job: Job) -> bool:
    """Run one task through `reef-pi`; True if the file it left is right."""
    (gateway.folder / "work" / job.file).unlink(missing_ok=True)
    run([gateway.pi, "-p", job.prompt], environment=gateway.environment, what="reef-pi", cwd=gateway.folder / "work")
    return judge(gateway, job)


def judge(gateway: Gateway, job: Job) -> bool:
    found = gateway.folder / "work" / job.file
    content = found.read_text(errors="replace").strip() if found.exists() else "(no file)"
    passed = content == job.expected
    mark = "[green]✓[/]" if passed else "[red]✗[/]"
    console.print(
        f"  {mark} reef-pi -p {escape(shlex.quote(job.prompt))} → {escape(content)}" + ("" if passed else f", expected {job.expected}")
    )
    return passed


def do_and_report(gateway: Gateway, job: Job) -> bool:
    passed = do(gateway, job)
    grade = ["report", "--score", "1" if passed else "0", *([] if passed else ["--feedback", job.feedback])]
    said = run([gateway.pi, *grade], environment=gateway.environment, what="reef-pi report")
    if not passed:
        show_command("reef-pi " + shlex.join(grade), indent=4)
        for line in said.strip().splitlines():
            console.print(f"      {escape(line)}")
        report = gateway.get(f"/reef/reports/{said.split()[-1]}")
        console.print(f"      it quotes the receipts {', '.join(report['references'])}")
    return passed


def watch_learning(gateway: Gateway) -> list[dict[str, Any]]:
    """Follow the learner until a candidate is released or all attempts are settled."""
    chapter(4, "Cordis proposes, the real Pi tries, the gate decides")
    show_command("reef candidates")
    shown: set[str] = set()

    def settled() -> list[dict[str, Any]] | None:
        candidates = gateway.get(f"/reef/scenarios/{SCENARIO}/candidates")["candidates"]
        for candidate in candidates:
            if candidate["state"] not in ("proposed", "judging") and candidate["id"] not in shown:
                shown.add(candidate["id"])
                show_candidate(gateway.get(f"/reef/candidates/{candidate['id']}"))
        finals = [candidate for candidate in candidates if candidate["id"] in shown]
        released = any(candidate["state"] == "released" for candidate in finals)
        given_up = finals and gateway.get("/reef/status")["learner"].get("phase") == "idle"
        return finals if released or given_up else None

    return wait_for(settled, "the learner to settle its candidates", bound_s=LEARN_WITHIN_S)


def show_candidate(candidate: dict[str, Any]) -> None:
    colour = "green" if candidate["state"] == "released" else "red"
    console.print(f"\n  [bold {colour}]{candidate['state']}[/] {escape(candidate['summary'])}")
    console.print(f"  branch   {candidate['branch']}")
    console.print(f"  because  {', '.join(candidate['reports'])}")
    for line in candidate["diff"].rstrip().splitlines():
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "default")
        console.print(f"    [{colour}]{escape(line)}[/]")
    verdict = candidate["verdict"]
    console.print(f"  reason   {escape(candidate['reason'])}")
    if verdict:
        console.print(
            f"  evidence {verdict['pairs']} pairs of trials in {verdict['seconds']:.0f} s: {verdict['wins']} won, {verdict['losses']} lost,"
            f" effect {verdict['effect']:+.2f} in [{verdict['low']:+.2f}, {verdict['high']:+.2f}]"
        )


def take_update(gateway: Gateway) -> None:
    chapter(5, "The next launch offers the update")
    job = JOBS[0]
    (gateway.folder / "work" / job.file).unlink(missing_ok=True)
    show_command(f"reef-pi -p {shlex.quote(job.prompt)}")
    screen = at_terminal(
        [gateway.pi, "-p", job.prompt],
        environment={**gateway.environment, "REEF_UPDATE": "prompt"},
        cwd=gateway.folder / "work",
        question="[Y/n/d(iff)]",
        answer="y",
    )
    for line in screen.strip().splitlines():
        console.print(f"    {escape(line.rstrip())}")
    if "update available" not in screen:
        raise DemoFailed("the launch did not offer the update")


def say_what_next(gateway: Gateway, *, keep: bool) -> None:
    console.print(f"\nIts chain, and what the releases changed:\n{escape(gateway.reef('releases'))}")
    if keep:
        console.print(f"Still running at {gateway.url} (stop: kill {gateway.process.pid}). Next, for example:")
        console.print("  .venv/bin/reef status · reef candidates -s demo · reef diff 1 2 -s demo · reef rollback 1 -s demo")
    else:
        console.print("Next: [bold]make demo KEEP=1[/] leaves it running, or serve your own model:")
        console.print("  .venv/bin/reef serve --upstream http://HOST:PORT/v1 --model NAME --upstream-key-env NAME")


def chapter(number: int, title: str) -> None:
    console.print(f"\n[bold]{number}. {title}[/]")


def show_command(command: str, *, indent: int = 2) -> None:
    console.print(" " * indent + f"[dim]$ {escape(command)}[/]")


def wait_for(look: Callable[[], Any], what: str, *, bound_s: float) -> Any:
    """Look again and again until there is something."""
    deadline = time.monotonic() + bound_s
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(0.1)
    raise DemoFailed(f"waited {bound_s:.0f} s for {what}")


def run(
    command: list[str], *, environment: dict[str, str], what: str, cwd: Path | None = None, bound_s: float = 120, echo: bool = False
) -> str:
    """Run a command to its end and return what it printed."""
    try:
        done = subprocess.run(
            command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=bound_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"{what} did not end within {bound_s:.0f} s") from None
    if done.returncode != 0:
        raise DemoFailed(f"{what} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    if echo:
        for line in done.stdout.strip().splitlines():
            console.print(f"    {escape(line)}")
    return done.stdout


def at_terminal(command: list[str], *, environment: dict[str, str], cwd: Path, question: str, answer: str) -> str:
    """Run a command at a terminal of its own, answer its question once, and return the whole screen."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.execve(command[0], command, environment)
    screen, answered, deadline = b"", False, time.monotonic() + 120
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux answers EIO, not end of file, when the last process has left the terminal
            piece = b""
        if not piece:
            break
        screen += piece
        if not answered and question.encode() in screen:
            os.write(terminal, f"{answer}\n".encode())
            answered = True
    else:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(terminal)
    return screen.decode(errors="replace").replace("\r", "")


if __name__ == "__main__":
    sys.exit(main())
