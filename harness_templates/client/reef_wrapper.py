#!/usr/bin/env python3
"""reef-<agent>: run a coding agent through Reef, with the harness that Reef has released for it.

    reef-pi [pi arguments]           look for an update, register the session, become pi
    reef-pi report --score 0 --feedback "it forgot the tests" [--session ID]
    reef-pi status                   what is installed, what is released, what ran last
    reef-pi update [--to STEP]       take the newest release, or stay with an older one until the next `update`
    reef-pi -- report …              everything after -- goes to pi

REEF_UPDATE=prompt|auto|never says what to do about an update found at launch; REEF_SCENARIO runs another scenario than the installed one.
REEF_TOKEN, or the file `token` beside this program's folder, authenticates. One file, standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

LAUNCH_BOUND_S = 0.3
PULL_TIMEOUT_S = 30
MAX_ANSWER_BYTES = 64 << 20
KEPT_RELEASES = 8

# --- What is installed -----------------------------------------------------------------------------------------------


class Failure(Exception):
    """Something to tell the user, with what to try."""

    def __init__(self, message, hint=""):
        super().__init__(message)
        self.hint = hint


class Installation:
    """The files of one agent and one scenario below the Reef home.

    bin/reef-pi, bin/reef-pi.json    this program and how it was set up
    pi/cli-<version>/                the agent itself
    pi/<scenario>/releases/…         pulled harnesses, rendered for the agent; never changed by us once they are there
    pi/<scenario>/current.json       which of them is used: replaced in one step
    pi/<scenario>/latest.json        the latest run
    """

    def __init__(self, program):
        self.name = program.name
        self.home = Path(os.environ.get("REEF_HOME") or program.parent.parent)
        self.config = read_json(program.with_name(program.name + ".json"))
        if not self.config:
            raise Failure(f"{program}.json is missing or damaged", "Run the install command again.")
        self.scenario = os.environ.get("REEF_SCENARIO") or self.config["scenario"]
        self.adapter_folder = self.home / self.config["adapter"]
        self.cli = self.adapter_folder / ("cli-" + self.config["version"])
        # quoted, so that no scenario's name can lead out of the folder or clash with cli-…
        self.folder = self.adapter_folder / ("scenario-" + urllib.parse.quote(self.scenario, safe=""))

    @property
    def current(self):
        return read_json(self.folder / "current.json")

    @property
    def latest(self):
        return read_json(self.folder / "latest.json")

    @property
    def client(self):
        """A name for this installation, random and made once: it may be pinned to a release, or drawn to try one before the others."""
        file = self.home / "client.json"
        if "id" not in read_json(file):
            with contextlib.suppress(OSError):
                write_json(file, {"id": "client-" + secrets.token_hex(6)})
        return str(read_json(file).get("id", ""))

    def token(self):
        if os.environ.get("REEF_TOKEN"):
            return os.environ["REEF_TOKEN"]
        with contextlib.suppress(OSError):
            return (self.home / "token").read_text().strip()
        return ""


def read_json(path):
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path, value):
    """Whole or not at all, whoever else writes and whenever the power goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=str(path.parent), prefix=path.name)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)


# --- Talking to the gateway ------------------------------------------------------------------------------------------


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to wherever it points."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        return None


def call(installation, path, *, body=None, timeout_s=PULL_TIMEOUT_S, parse=json.loads, **query):
    """What the gateway answers, parsed; Failure where it gives no good answer."""
    base = installation.config["url"]
    url = base + path + ("?" + urllib.parse.urlencode(query) if query else "")
    headers = {"x-reef-scenario": installation.scenario, "x-reef-client": installation.client, "content-type": "application/json"}
    if installation.token():
        headers["authorization"] = "Bearer " + installation.token()
    data = None if body is None else json.dumps(body).encode()
    handlers = [NoRedirect]
    if urllib.parse.urlsplit(base).hostname in ("localhost", "127.0.0.1", "::1"):
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - http or https, by the installer
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            return parse(answer.read(MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        raise refusal(error) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Failure(f"{base} does not answer: {reason}", "Is `reef serve` running there?") from None


def refusal(error):
    """What the gateway said, in its own words."""
    try:
        said = json.loads(error.read(1 << 16))["error"]
        message, hint = str(said["message"]), str(said.get("hint", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        message, hint = f"the gateway answered {error.code}", ""
    if error.code == 401:
        hint = "export REEF_TOKEN=…"
    return Failure(message, hint)


def within_bound(function):
    """Its answer if it comes within the launch bound, else None. A time-out on the socket alone would not bound name look-ups."""
    answers = []

    def attempt():
        with contextlib.suppress(Failure):
            answers.append(function())

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(LAUNCH_BOUND_S)
    return answers[0] if answers else None


# --- Releases --------------------------------------------------------------------------------------------------------


def pull(installation, *, step=None, pinned=False):
    """Fetch a release into a folder of its own, then make it the current one."""
    query = {"adapter": installation.config["adapter"], "client": installation.client}
    if step is not None:
        query["version"] = str(step)
    release = call(installation, "/reef/harness", **query)
    old = installation.current
    try:
        name = "{:06d}-{}".format(int(release["step"]), re.sub(r"[^0-9a-f]", "", release["content_id"])[:12])
        contents = [(safe_path(path), checked(path, text, release["digests"])) for path, text in release["files"].items()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Failure(f"the gateway's answer makes no sense: {error!r}", "Is it a Reef of the same version?") from None
    releases = installation.folder / "releases"
    releases.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=str(releases), prefix=".part-"))
    try:
        for relative, data in contents:
            target = part / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            if relative in release.get("executable", ()):
                target.chmod(0o755)
        carry_over(installation, old, part)
        link_sessions(installation, part)
        # a name of its own each time: the folder of a run that is still going on is never touched
        folder = releases / (name + "-" + secrets.token_hex(3))
        part.rename(folder)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    current = {key: release.get(key) for key in ("step", "content_id", "summary", "candidate")}
    write_json(installation.folder / "current.json", dict(current, folder=folder.name, pinned=pinned))
    for stale in sorted(releases.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT_RELEASES]:
        shutil.rmtree(stale, ignore_errors=True)
    wanted = (release.get("adapter") or {}).get("version")
    if wanted and wanted != installation.config["version"]:
        say(f"this release is meant for {installation.config['adapter']} {wanted}; run the install command again to get it")
    return installation.current


def label(release):
    """How a release is called; one that only some get to try, by its candidate."""
    return release.get("candidate") or str(release["step"])


def safe_path(path):
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise Failure(f"the gateway sent the path {path!r}; nothing was installed", "Do not trust it until you know why.")
    return path


def checked(path, text, digests):
    data = text.encode()
    if hashlib.sha256(data).hexdigest() != digests.get(path):
        raise Failure(f"{path} does not match its digest; nothing was installed", "Try again.")
    return data


def carry_over(installation, old, folder):
    """The agent's own files (log-ins, trust) move along; those of the harness come from the release only."""
    for name in installation.config["launch"]["keep"] if old else ():
        source = installation.folder / "releases" / old["folder"] / name
        if source.is_file() and not (folder / name).exists():
            shutil.copy2(source, folder / name)


def link_sessions(installation, folder):
    """Folders of sessions that the agent keeps beside its configuration: the releases share them, so that a session can be resumed."""
    for name in installation.config["launch"].get("lasting", ()):
        shared = installation.folder / "sessions" / name
        shared.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(shared, target_is_directory=True)


def offer_update(installation, current):
    """At launch. Whatever goes wrong in here, the agent starts with what is installed."""
    mode = os.environ.get("REEF_UPDATE", "prompt")
    if mode == "never" or current.get("pinned"):
        return current
    have = current["content_id"]
    ask = {"adapter": installation.config["adapter"], "have": have, "client": installation.client}
    head = within_bound(lambda: call(installation, "/reef/harness/head", timeout_s=LAUNCH_BOUND_S, **ask))
    if not head or not head.get("step"):
        return current
    if head.get("content_id") == have:
        return renamed(installation, current, head)
    what = f"Reef update available: {label(current)} → {label(head)}  {head.get('summary') or ''}".rstrip()
    if mode != "auto":
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            say(f"{what}; take it with `{installation.name} update`")
            return current
        if not confirmed(installation, what, old=current, new=head):
            return current
    try:
        current = pull(installation)
        say(f"now at release {label(current)}")
    except (Failure, OSError) as error:
        say(f"not updated: {error}; going on with release {label(current)}")
    return current


def renamed(installation, current, head):
    """The same bytes under another name: what was on trial here has become a release."""
    if label(current) != label(head):
        current = dict(current, step=head["step"], candidate=head.get("candidate"), summary=head.get("summary"))
        with contextlib.suppress(OSError):
            write_json(installation.folder / "current.json", current)
    return current


def confirmed(installation, question, *, old, new):
    while True:
        print(f"{question} [Y/n/d(iff)] ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        answer = line.strip().lower()
        if not line or answer in ("n", "no"):
            return False
        if answer in ("", "y", "yes"):
            return True
        if answer in ("d", "diff"):
            query = {"candidate": new["candidate"]} if new.get("candidate") else {"from": old["step"], "to": new["step"]}
            try:
                print(call(installation, "/reef/harness/diff", parse=bytes.decode, **query), file=sys.stderr)
            except Failure as error:
                say(f"no diff: {error}")


# --- Commands --------------------------------------------------------------------------------------------------------


def launch(installation, arguments):
    """Become the agent. Returns only by an exception."""
    config, spec = installation.config, installation.config["launch"]
    command = installation.cli / "node_modules" / ".bin" / config["command"]
    if not os.access(command, os.X_OK):
        raise Failure(f"{command} is missing", "Run the install command again.")
    is_run = not (arguments and arguments[0] in spec["not_runs"])
    current = installation.current
    if not current:
        current = pull(installation)
    elif is_run:
        current = offer_update(installation, current)
    places = {"config": str(installation.folder / "releases" / current["folder"]), "sessions": str(installation.folder / "sessions")}
    Path(places["sessions"]).mkdir(parents=True, exist_ok=True)
    session = "{}-{}-{}".format(config["adapter"], time.strftime("%Y%m%d-%H%M%S", time.gmtime()), secrets.token_hex(4))
    key, step = installation.token() or "reef-local", label(current)
    lines = [f"x-reef-scenario: {installation.scenario}", f"x-reef-session: {session}", f"x-reef-release: {step}"]
    places.update(key=key, headers="\n".join(lines))
    env = dict(os.environ)
    env.update({name: value.format_map(places) for name, value in spec["env"].items()})
    env.update(REEF_API_KEY=key, REEF_SCENARIO=installation.scenario, REEF_SESSION=session, REEF_RELEASE=step)
    env["PATH"] = os.pathsep.join([str(installation.cli / "node-bin"), env.get("PATH", os.defpath)])
    argv = [str(command)] + [argument.format_map(places) for argument in spec["args"]] + arguments
    before = installation.latest
    if is_run:
        body = {"session": session, "adapter": config["adapter"], "release": None if current.get("candidate") else current["step"]}
        within_bound(lambda: call(installation, "/reef/sessions", body=body, timeout_s=LAUNCH_BOUND_S))
        ran = current.get("candidate") or current["step"]
        run = {"session": session, "release": ran, "started_at": time.time(), "folder": str(Path.cwd())}
        write_json(installation.folder / "latest.json", run)
    try:
        os.execve(str(command), argv, env)
    except OSError as error:  # this was no run: `report` must not mean it
        write_json(installation.folder / "latest.json", before)
        raise Failure(f"{command} cannot be started: {error.strerror}", "Run the install command again.") from None


def report(installation, arguments):
    parser = argparse.ArgumentParser(prog=installation.name + " report", description="Say how a run went; the latest one by default.")
    parser.add_argument("--score", type=float, help="0 failed … 1 perfect")
    parser.add_argument("--feedback", help="what was wrong or right, in your words")
    parser.add_argument("--session", help="another run than the latest")
    options = parser.parse_args(arguments)
    if options.score is None and not options.feedback:
        parser.error("give --score, --feedback or both")
    if options.score is not None and not 0 <= options.score <= 1:
        parser.error("--score is between 0 and 1")
    session = options.session or installation.latest.get("session")
    if not session:
        raise Failure("nothing has run here yet", f"Run `{installation.name}` first, or name a run with --session.")
    body = {"session": session, "metadata": {"source": installation.name}}
    body.update({key: value for key, value in (("score", options.score), ("feedback", options.feedback)) if value is not None})
    # the same words about the same run are the same report, however often a shaky line makes us send them
    body["agent_record_id"] = "report-" + hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]
    answer = call(installation, "/reef/report", body=body)
    print(f"reported on {session}: {answer.get('agent_record_id') or body['agent_record_id']}")


def status(installation, arguments):
    argparse.ArgumentParser(prog=installation.name + " status", description="What is installed and released.").parse_args(arguments)
    config, current, latest = installation.config, installation.current, installation.latest
    try:
        head = call(installation, "/reef/harness/head", timeout_s=3, adapter=config["adapter"], client=installation.client)
        released = f"{label(head)}  {head.get('summary') or ''}".rstrip()
    except Failure as error:
        released = f"unknown: {error}"
    pinned = f" (stays until `{installation.name} update`)" if current.get("pinned") else ""
    ran = "{session}, release {release}".format(**latest) if latest else "nothing yet"
    print(f"gateway    {config['url']}\nscenario   {installation.scenario}\nagent      {config['adapter']} {config['version']}")
    print(f"client     {installation.client}\ninstalled  {label(current) if current else 'nothing yet'}{pinned}")
    print(f"released   {released}\nlatest run {ran}")


def update(installation, arguments):
    parser = argparse.ArgumentParser(prog=installation.name + " update", description="Take the newest release, or one of your choice.")
    parser.add_argument("--to", type=int, metavar="STEP", help="this release; no update is offered until the next plain `update`")
    options = parser.parse_args(arguments)
    before = installation.current
    current = pull(installation, step=options.to, pinned=options.to is not None)
    moved = "is at" if not before or label(before) == label(current) else f"went from release {label(before)} to"
    print(f"{installation.name} {moved} release {label(current)}  {current.get('summary') or ''}".rstrip())
    if current["pinned"]:
        print(f"It stays there; `{installation.name} update` follows the newest release again.")


COMMANDS = {"report": report, "status": status, "update": update}


def say(text):
    print("reef: " + text, file=sys.stderr)


def main(arguments):
    # not through Path.resolve of argv[0]: started by a link in ~/.local/bin, the files are where the link leads
    installation = Installation(Path(os.path.realpath(__file__)))
    if arguments and arguments[0] in COMMANDS:
        COMMANDS[arguments[0]](installation, arguments[1:])
        return
    launch(installation, arguments[1:] if arguments[:1] == ["--"] else arguments)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except (Failure, OSError) as failure:
        say(str(failure) + (f"\n      {failure.hint}" if getattr(failure, "hint", "") else ""))
        sys.exit(1)
