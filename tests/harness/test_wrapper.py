"""``reef-<agent>`` as a user meets it: its own process, a terminal where there is one, real HTTP. The agent is a small script that tells
what it was started with."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from adapters.pi import PiAdapter

if TYPE_CHECKING:
    from tests.harness.conftest import MiniGateway

WRAPPER = Path(__file__).parents[2] / "harness_templates" / "client" / "reef_wrapper.py"
AGENT = """#!/bin/sh
echo "args:$*"
env | grep -E '^(REEF|PI)_' | sort
cat "$PI_CODING_AGENT_DIR/AGENTS.md"
"""


@dataclass
class Client:
    """An installed wrapper."""

    home: Path
    gateway: MiniGateway

    @property
    def program(self) -> Path:
        return self.home / "bin" / "reef-pi"

    def environment(self, **more: str) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home.parent), **more}

    def run(self, *arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, str(self.program), *arguments],
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def state(self, name: str) -> dict[str, Any]:
        path = self.home / "pi" / "scenario-default" / name
        return json.loads(path.read_text()) if path.exists() else {}

    def on_a_terminal(self, *steps: tuple[str, str], arguments: tuple[str, ...] = (), **environment: str) -> str:
        """Run it on a pseudo-terminal; each step waits for a text on the screen and then types."""
        pid, screen = pty.fork()
        if pid == 0:
            os.execve(sys.executable, [sys.executable, str(self.program), *arguments], self.environment(**environment))
        shown, deadline, todo = "", time.monotonic() + 30, list(steps)
        seen = 0
        while True:
            assert time.monotonic() < deadline, shown
            if select.select([screen], [], [], 0.1)[0]:
                try:
                    data = os.read(screen, 4096)
                except OSError:  # the other side is closed
                    break
                shown += data.decode()
            if todo and (at := shown.find(todo[0][0], seen)) >= 0:
                seen = at + len(todo[0][0])
                os.write(screen, todo.pop(0)[1].encode())
        assert os.waitpid(pid, 0)[1] == 0, shown
        os.close(screen)
        assert not todo, shown
        return shown.replace("\r\n", "\n")


@pytest.fixture
def client(gateway: MiniGateway, tmp_path: Path) -> Client:
    made = Client(tmp_path / "reef", gateway)
    made.program.parent.mkdir(parents=True)
    shutil.copy(WRAPPER, made.program)
    launch = PiAdapter().launch()
    spec = {"args": launch.args, "env": dict(launch.env), "keep": launch.keep, "not_runs": launch.not_runs}
    config = {"url": gateway.url, "adapter": "pi", "scenario": "default", "version": "1.6.0", "command": "pi", "launch": spec}
    made.program.with_name("reef-pi.json").write_text(json.dumps(config))
    agent = made.home / "pi" / "cli-1.6.0" / "node_modules" / ".bin" / "pi"
    agent.parent.mkdir(parents=True)
    agent.write_text(AGENT)
    agent.chmod(0o755)
    made.run("update")
    return made


def started_with(output: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in output.splitlines() if line.startswith(("REEF_", "PI_")))


def test_it_becomes_the_agent_with_the_release_and_the_headers_variables(client: Client, gateway: MiniGateway) -> None:
    done = client.run("-p", "do it", "--flag")
    assert done.stdout.startswith("args:-p do it --flag\n") and "# How to work" in done.stdout
    seen = started_with(done.stdout)
    assert (seen["REEF_API_KEY"], seen["REEF_SCENARIO"], seen["REEF_RELEASE"]) == ("reef-local", "default", "1")
    assert seen["REEF_SESSION"] == client.state("latest.json")["session"]
    assert Path(seen["PI_CODING_AGENT_DIR"]).parent.parent == Path(seen["PI_CODING_AGENT_SESSION_DIR"]).parent
    headers, body = gateway.called("/reef/sessions")[0]
    assert headers["x-reef-scenario"] == "default"
    assert body == {"session": seen["REEF_SESSION"], "adapter": "pi", "release": 1}


def test_each_run_is_a_session_of_its_own_and_sessions_of_the_agent_outlive_updates(client: Client, gateway: MiniGateway) -> None:
    first = started_with(client.run("-p", "x").stdout)
    gateway.release(AGENTS_md="New rules.\n")
    second = started_with(client.run("-p", "x", REEF_UPDATE="auto").stdout)
    assert first["REEF_SESSION"] != second["REEF_SESSION"]
    assert first["PI_CODING_AGENT_DIR"] != second["PI_CODING_AGENT_DIR"]
    assert first["PI_CODING_AGENT_SESSION_DIR"] == second["PI_CODING_AGENT_SESSION_DIR"]
    assert second["REEF_RELEASE"] == "2"


def test_a_candidate_on_canary_is_offered_shown_run_and_left_again(client: Client, gateway: MiniGateway) -> None:
    gateway.release(AGENTS_md="Better rules.\n")
    gateway.candidate = "c-0123456789ab"
    shown = client.on_a_terminal(("[Y/n/d(iff)]", "d\n"), ("[Y/n/d(iff)]", "y\n"))
    assert "Reef update available: 1 → c-0123456789ab" in shown and "+new c-0123456789ab" in shown
    assert "REEF_RELEASE=c-0123456789ab\n" in shown and "Better rules." in shown
    assert gateway.called("/reef/sessions")[-1][1]["release"] is None
    headers, _ = gateway.called("/reef/harness/head")[-1]
    assert headers["x-reef-client"].startswith("client-") and headers["x-reef-client"] in client.run("status").stdout
    assert "c-0123456789ab" in client.run("status").stdout
    assert started_with(client.run("-p", "x").stdout)["REEF_RELEASE"] == "c-0123456789ab"
    gateway.trees.pop()
    gateway.candidate = ""
    back = client.run("-p", "x", REEF_UPDATE="auto")
    assert started_with(back.stdout)["REEF_RELEASE"] == "1" and "now at release 1" in back.stderr


def test_a_candidate_that_became_a_release_is_not_fetched_again(client: Client, gateway: MiniGateway) -> None:
    gateway.release(AGENTS_md="Better rules.\n")
    gateway.candidate = "c-0123456789ab"
    client.run("-p", "x", REEF_UPDATE="auto")
    pulled = len(gateway.called("/reef/harness"))
    gateway.candidate = ""
    done = client.run("-p", "x")
    assert started_with(done.stdout)["REEF_RELEASE"] == "2" and done.stderr == ""
    assert len(gateway.called("/reef/harness")) == pulled


def test_an_agent_that_refers_to_nothing_gets_key_and_headers_and_keeps_its_sessions(client: Client, gateway: MiniGateway) -> None:
    path = client.program.with_name("reef-pi.json")
    config = json.loads(path.read_text())
    config["launch"]["env"] |= {"PI_KEY": "{key}", "PI_LINES": "{headers}"}
    config["launch"]["lasting"] = ["projects"]
    path.write_text(json.dumps(config))
    gateway.release(AGENTS_md="New rules.\n")
    first = client.run("-p", "x", REEF_UPDATE="auto", REEF_TOKEN="token-1").stdout
    gateway.release(AGENTS_md="Newer rules.\n")
    second = client.run("-p", "x", REEF_UPDATE="auto", REEF_TOKEN="token-1").stdout
    seen = started_with(second)
    assert seen["PI_KEY"] == "token-1" and seen["PI_LINES"] == "x-reef-scenario: default"
    folders = [Path(started_with(output)["PI_CODING_AGENT_DIR"]) for output in (first, second)]
    assert folders[0] != folders[1]
    (folders[0] / "projects" / "a.jsonl").write_text("{}")
    assert (folders[1] / "projects" / "a.jsonl").read_text() == "{}"


@pytest.mark.parametrize(("typed", "release"), [("y\n", "2"), ("\n", "2"), ("n\n", "1"), ("\x04", "1")])
def test_on_a_terminal_it_asks_before_it_updates(client: Client, gateway: MiniGateway, typed: str, release: str) -> None:
    gateway.release(AGENTS_md="New rules.\n")
    shown = client.on_a_terminal(("[Y/n/d(iff)] ", typed))
    assert "Reef update available: 1 → 2  summary of 2 [Y/n/d(iff)]" in shown
    assert f"REEF_RELEASE={release}\n" in shown
    assert ("New rules." in shown) == (release == "2")


def test_the_diff_is_shown_and_then_it_asks_again(client: Client, gateway: MiniGateway) -> None:
    gateway.release(AGENTS_md="New rules.\n")
    shown = client.on_a_terminal(("[Y/n/d(iff)] ", "d\n"), ("[Y/n/d(iff)] ", "y\n"))
    assert "-old 1\n+new 2\n" in shown and "REEF_RELEASE=2" in shown


def test_without_news_it_asks_nothing(client: Client) -> None:
    shown = client.on_a_terminal()
    assert "update" not in shown.lower() and "REEF_RELEASE=1" in shown


def test_without_a_terminal_it_says_one_line_and_goes_on(client: Client, gateway: MiniGateway) -> None:
    gateway.release(AGENTS_md="New rules.\n")
    done = client.run("-p", "x")
    assert done.stderr.count("\n") == 1 and "Reef update available: 1 → 2" in done.stderr and "reef-pi update" in done.stderr
    assert started_with(done.stdout)["REEF_RELEASE"] == "1"


def test_reef_update_says_what_to_do(client: Client, gateway: MiniGateway) -> None:
    gateway.release(AGENTS_md="New rules.\n")
    never = client.run("-p", "x", REEF_UPDATE="never")
    assert never.stderr == "" and started_with(never.stdout)["REEF_RELEASE"] == "1"
    assert started_with(client.run("-p", "x", REEF_UPDATE="auto").stdout)["REEF_RELEASE"] == "2"


@pytest.mark.alone
def test_a_gateway_that_hangs_costs_a_launch_less_than_a_second(client: Client, gateway: MiniGateway) -> None:
    gateway.hold.clear()
    started = time.monotonic()
    done = client.run("-p", "x")
    assert time.monotonic() - started < 1.5
    assert started_with(done.stdout)["REEF_RELEASE"] == "1"


def test_a_gateway_that_is_gone_stops_no_launch(client: Client) -> None:
    config = client.program.with_name("reef-pi.json")
    config.write_text(config.read_text().replace(client.gateway.url, "http://127.0.0.1:9"))
    done = client.run("-p", "x")
    assert started_with(done.stdout)["REEF_RELEASE"] == "1"
    status = client.run("status")
    assert "unknown: http://127.0.0.1:9 does not answer" in status.stdout


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"files": {"../../evil": "x"}, "digests": {"../../evil": "0"}}, "'../../evil'"),
        ({"files": {"/etc/evil": "x"}, "digests": {}}, "'/etc/evil'"),
        ({"files": {"a\\b": "x"}, "digests": {}}, "nothing was installed"),
        ({"files": {"AGENTS.md": "tampered"}}, "AGENTS.md does not match its digest"),
        ({"files": None}, "makes no sense"),
        ({"step": "x; rm -rf /"}, "makes no sense"),
    ],
)
def test_a_bad_answer_installs_nothing(
    client: Client, gateway: MiniGateway, tmp_path: Path, damage: dict[str, Any], complaint: str
) -> None:
    before = sorted(client.home.rglob("*"))
    gateway.release(AGENTS_md="New rules.\n")
    gateway.damage = damage
    refused = client.run("update", check=False)
    assert refused.returncode == 1 and complaint in refused.stderr and "Traceback" not in refused.stderr
    assert sorted(client.home.rglob("*")) == before
    launched = client.run("-p", "x", REEF_UPDATE="auto")
    assert "not updated" in launched.stderr and started_with(launched.stdout)["REEF_RELEASE"] == "1"
    assert not list(tmp_path.rglob("evil"))


def test_a_report_is_about_the_latest_run_and_a_repeated_one_has_the_same_id(client: Client, gateway: MiniGateway) -> None:
    session = started_with(client.run("-p", "x").stdout)["REEF_SESSION"]
    said = client.run("report", "--score", "0", "--feedback", "it forgot")
    client.run("report", "--score", "0", "--feedback", "it forgot")
    client.run("report", "--score", "1")
    client.run("report", "--session", "older", "--feedback", "fine")
    bodies = [body for _, body in gateway.called("/reef/report")]
    assert session in said.stdout
    assert [body["session"] for body in bodies] == [session, session, session, "older"]
    assert (bodies[0]["score"], bodies[0]["feedback"]) == (0, "it forgot")
    ids = [body["agent_record_id"] for body in bodies]
    assert ids[0] == ids[1] and len(set(ids)) == 3
    assert "feedback" not in bodies[2] and "score" not in bodies[3]


def test_a_report_without_content_or_a_run_is_refused(client: Client) -> None:
    assert "give --score, --feedback or both" in client.run("report", check=False).stderr
    assert "between 0 and 1" in client.run("report", "--score", "7", check=False).stderr
    assert "nothing has run here yet" in client.run("report", "--score", "1", check=False).stderr


def test_only_what_became_the_agent_counts_as_the_latest_run(client: Client) -> None:
    session = started_with(client.run("-p", "x").stdout)["REEF_SESSION"]
    client.run("--version")
    client.run("status")
    agent = client.home / "pi" / "cli-1.6.0" / "node_modules" / ".bin" / "pi"
    agent.write_text("not a program")  # execve refuses it
    failed = client.run("-p", "x", check=False)
    assert failed.returncode == 1 and "cannot be started" in failed.stderr and "install command again" in failed.stderr
    assert client.state("latest.json")["session"] == session


def test_words_are_subcommands_only_in_the_first_place(client: Client) -> None:
    assert client.run("-p", "report").stdout.startswith("args:-p report\n")
    assert client.run("--", "report", "--score", "1").stdout.startswith("args:report --score 1\n")
    assert client.run("--", "--", "-x").stdout.startswith("args:-- -x\n")


def test_a_chosen_release_stays_until_the_next_plain_update(client: Client, gateway: MiniGateway) -> None:
    gateway.release(AGENTS_md="Second.\n")
    gateway.release(AGENTS_md="Third.\n")
    assert "went from release 1 to release 3" in client.run("update").stdout
    assert "It stays there" in client.run("update", "--to", "2").stdout
    launched = client.run("-p", "x", REEF_UPDATE="auto")
    assert started_with(launched.stdout)["REEF_RELEASE"] == "2" and "Second." in launched.stdout
    assert "installed  2 (stays until" in client.run("status").stdout
    client.run("update")
    assert "installed  3\n" in client.run("status").stdout


def test_what_the_agent_wrote_for_itself_is_kept_and_what_a_release_dropped_is_gone(client: Client, gateway: MiniGateway) -> None:
    gateway.release(memory__x_md="x", commands__go_md="Go.")
    client.run("update")
    folder = Path(started_with(client.run("-p", "x").stdout)["PI_CODING_AGENT_DIR"])
    assert (folder / "prompts" / "go.md").is_file()
    (folder / "auth.json").write_text('{"login": 1}')
    gateway.trees.append(gateway.trees[0])
    client.run("update")
    folder = Path(started_with(client.run("-p", "x").stdout)["PI_CODING_AGENT_DIR"])
    assert (folder / "auth.json").read_text() == '{"login": 1}' and not (folder / "prompts").exists()


def test_old_releases_are_cleared_away(client: Client, gateway: MiniGateway) -> None:
    for number in range(12):
        gateway.release(AGENTS_md=f"Rules {number}.\n")
        client.run("update")
    releases = list((client.home / "pi" / "scenario-default" / "releases").iterdir())
    assert len(releases) == 8
    assert "Rules 11." in client.run("-p", "x").stdout


def test_the_token_comes_from_the_environment_or_the_file_and_is_never_in_the_settings(client: Client, gateway: MiniGateway) -> None:
    gateway.token = "s3cret-token"
    refused = client.run("update", check=False)
    assert refused.returncode == 1 and "export REEF_TOKEN" in refused.stderr
    assert started_with(client.run("-p", "x", REEF_TOKEN="s3cret-token").stdout)["REEF_API_KEY"] == "s3cret-token"
    (client.home / "token").write_text("s3cret-token\n")
    client.run("update")
    assert started_with(client.run("-p", "x").stdout)["REEF_API_KEY"] == "s3cret-token"
    written = [path for path in client.home.rglob("*") if path.is_file() and path.name != "token" and b"s3cret-token" in path.read_bytes()]
    assert not written


def test_another_scenario_keeps_its_own_releases(client: Client, gateway: MiniGateway) -> None:
    seen = started_with(client.run("-p", "x", REEF_SCENARIO="../other").stdout)
    assert seen["REEF_SCENARIO"] == "../other"
    assert Path(seen["PI_CODING_AGENT_DIR"]).is_relative_to(client.home / "pi" / "scenario-..%2Fother")
    assert {headers["x-reef-scenario"] for headers, _ in gateway.called("/reef/harness")} == {"default", "../other"}


def test_it_works_through_a_link_and_with_the_oldest_python_it_promises(client: Client, tmp_path: Path) -> None:
    link = tmp_path / "somewhere" / "reef-pi"
    link.parent.mkdir()
    link.symlink_to(client.program)
    done = subprocess.run(
        [sys.executable, str(link), "status"], env=client.environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert f"gateway    {client.gateway.url}" in done.stdout
    for python in sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python3")):
        old = subprocess.run(
            [str(python), str(link), "status"], env=client.environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert old.returncode == 0, old.stderr


def test_a_redirect_does_not_carry_the_token_away(client: Client, gateway: MiniGateway) -> None:
    place: Callable[..., Any] = gateway.get
    gateway.get = lambda path, query: (302, "") if path == "/reef/harness" else place(path, query)  # type: ignore[method-assign]
    refused = client.run("update", check=False, REEF_TOKEN="t")
    assert refused.returncode == 1 and "302" in refused.stderr
