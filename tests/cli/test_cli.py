"""The command line is quick, and says what is wrong and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reef import __version__


def reef(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "REEF_TOKEN"}
    return subprocess.run(
        [sys.executable, "-m", "reef", *arguments], capture_output=True, text=True, timeout=60, cwd=cwd, env={**variables, **environment}
    )


@pytest.mark.alone
def test_help_answers_in_half_a_second() -> None:
    def seconds() -> float:
        began = time.monotonic()
        assert reef("--help").returncode == 0
        return time.monotonic() - began

    assert min(seconds() for _ in range(3)) < 0.5


def test_no_heavy_library_is_imported_for_help() -> None:
    script = (
        "import sys, reef.cli.app; print([name for name in ('torch', 'vllm', 'litellm', 'fastapi', 'sqlalchemy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout.strip() == "[]"


def test_version() -> None:
    assert reef("--version").stdout.strip() == f"reef {__version__}"


def test_doctor_names_what_is_there() -> None:
    told = reef("doctor").stdout
    for thing in ("python", "git", "npm", "bubblewrap", "coding agents"):
        assert thing in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("serve",), ("no upstream", "--upstream")),
        (("serve", "--upstream", "ftp://x"), ("upstream.url", "http://")),
        (("serve", "--upstream", "http://127.0.0.1:1/v1", "--host", "0.0.0.0"), ("refusing to listen on 0.0.0.0", "REEF_TOKEN")),
        (("serve", "--upstream", "http://127.0.0.1:1/v1", "--upstream-key-env", "NOT_SET"), ("NOT_SET",)),
        (("serve", "--upstream", "rehearsal", "--set", "listen.prot=1"), ("listen.prot", "unknown key")),
        (("serve", "--upstream", "rehearsal", "--set", "nonsense"), ("a.b=value",)),
        (("serve", "-c", "missing.yaml"), ("cannot read missing.yaml",)),
        (("status", "--url", "http://127.0.0.1:1"), ("no gateway answers", "reef serve")),
        (("releases", "--url", "nonsense"), ("not an address",)),
    ],
)
def test_bad_input_is_explained(tmp_path: Path, arguments: tuple[str, ...], said: tuple[str, ...]) -> None:
    done = reef(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    for words in said:
        assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_config_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("upstream: {url: rehearsal}\nservign: {}\n")
    done = reef("serve", "-c", "serve.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "servign: unknown key" in done.stderr
