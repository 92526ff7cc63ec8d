"""The install script: run by the real bash, fed through a pipe, with the real npm and Pi; and what must never get into it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from adapters.pi import PiAdapter
from reef.errors import InvalidRequest
from reef.harness.client import base_url, install_script

if TYPE_CHECKING:
    from tests.harness.conftest import MiniGateway


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
    # the user's npm settings and cache stay in use: what is tested is the script, not the registry's patience
    real = Path.home()
    npm = {"npm_config_userconfig": str(real / ".npmrc"), "npm_config_cache": str(real / ".npm")}
    return {**kept, **npm, "HOME": str(home), **more}


def pipe(url: str, *, env: dict[str, str], query: str = "adapter=pi", token: str = "") -> subprocess.CompletedProcess[str]:
    header = f'-H "Authorization: Bearer {token}"' if token else ""
    line = f"curl -fsS {header} '{url}/reef/harness/install?{query}' | bash"
    return subprocess.run(["bash", "-o", "pipefail", "-c", line], env=env, capture_output=True, text=True, timeout=280, check=False)


def test_the_pipe_installs_pi_and_the_wrapper_and_again_loses_nothing(gateway: MiniGateway, tmp_path: Path) -> None:
    gateway.token = "token-1"
    gateway.answers = ["Hello from the model."]
    home = tmp_path / "a home"
    home.mkdir()
    env = environment(home)
    done = pipe(gateway.url, env=env | {"REEF_TOKEN": "token-1"}, token="token-1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "ready." in done.stderr and "release 1" in done.stderr
    program = home / ".local" / "bin" / "reef-pi"
    assert program.is_symlink() and f'export PATH="{home}/.reef/bin:$PATH"' in done.stderr
    assert stat.S_IMODE((home / ".reef" / "token").stat().st_mode) == 0o600
    assert (home / ".reef" / "token").read_text() == "token-1\n"
    for name in ("reef-pi", "reef-pi.json"):
        assert "token-1" not in (home / ".reef" / "bin" / name).read_text()
    assert not list((home / ".reef").glob(".install-*"))

    work = tmp_path / "work"
    work.mkdir()
    ran = subprocess.run(
        [str(program), "-p", "hi"], cwd=work, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "Hello from the model.\n"), ran.stderr
    headers, body = gateway.called("/v1/chat/completions")[0]
    assert headers["authorization"] == "Bearer token-1" and headers["x-reef-release"] == "1"
    assert headers["x-reef-session"] == json.loads((home / ".reef/pi/scenario-default/latest.json").read_text())["session"]
    assert "How to work" in body["messages"][0]["content"]

    gateway.release(AGENTS_md="Second rules.\n")
    again = pipe(gateway.url, env=env | {"PATH": f"{home}/.reef/bin:{env['PATH']}"}, token="token-1")
    assert again.returncode == 0 and "installing" not in again.stderr and "release 2" in again.stderr and "PATH" not in again.stderr
    assert json.loads((home / ".reef/pi/scenario-default/latest.json").read_text())["release"] == 1


def test_a_download_cut_anywhere_does_nothing(tmp_path: Path) -> None:
    script = install_script(PiAdapter(), url="http://localhost:1", scenario="default")
    home = tmp_path / "home"
    home.mkdir()
    for size in [*range(0, len(script), len(script) // 40), script.rindex("main "), script.rindex("main ") + 3, len(script) - 2]:
        done = subprocess.run(["bash"], input=script[:size], env=environment(home), capture_output=True, text=True, timeout=30, check=False)
        assert not list(home.iterdir()), (size, done.stderr)


def test_a_missing_tool_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "mkdir", "python3"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    script = install_script(PiAdapter(), url="http://localhost:1", scenario="default")
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        ["bash"], input=script, env={"PATH": str(tools), "HOME": str(home)}, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1 and "npm is missing" in done.stderr and not list(home.iterdir())


NASTY = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "a\ntouch pwned\n",
    "END_OF_CHECK\ntouch pwned",
    "{{ 7 * 7 }}",
]


@pytest.mark.parametrize("scenario", NASTY)
def test_a_scenario_name_cannot_become_a_command(scenario: str, tmp_path: Path) -> None:
    script = install_script(PiAdapter(), url="http://localhost:1", scenario=scenario)
    body, _, last = script.rpartition("main ")
    checked = f'{body}\nscratch=$PWD/scratch; home=$PWD/home; mkdir scratch home; write_files "$home"\n'
    done = subprocess.run(
        ["bash"], input=checked, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert last == '"$@"\n' and not (tmp_path / "pwned").exists()
    assert json.loads((tmp_path / "home" / "reef-pi.json").read_text())["scenario"] == scenario


def test_a_wrapper_damaged_on_its_way_is_refused(tmp_path: Path) -> None:
    script = install_script(PiAdapter(), url="http://localhost:1", scenario="default").replace("LAUNCH_BOUND_S = 0.3", "LAUNCH_BOUND_S = 9")
    checked = script.rpartition("main ")[0] + "\nscratch=$PWD; mkdir home; write_files home\n"
    done = subprocess.run(
        ["bash"], input=checked, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1 and "damaged" in done.stderr and not list((tmp_path / "home").iterdir())


@pytest.mark.parametrize("host", ["localhost:8900", "reef.example.com", "10.0.0.1:80", "[::1]:8900", "my-host_1"])
def test_the_address_is_what_the_caller_used(host: str) -> None:
    assert base_url(scheme="http", host=host) == f"http://{host}"


@pytest.mark.parametrize(
    "host", ["", "a b", "$(id)", "`id`", "a'b", 'a"b', "a;b", "a\nb", "a:1:2", "a:port", "u@h", "h/path", "-x", "a" * 300, "[::1", "é"]
)
def test_a_host_header_that_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequest):
        base_url(scheme="http", host=host)


def test_the_script_passes_the_shells_own_check() -> None:
    script = install_script(PiAdapter(), url="http://localhost:1", scenario="default")
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False, timeout=30).returncode == 0
    assert script.startswith("#!/usr/bin/env bash\n") and "set -euo pipefail" in script
