"""What is compared, and how each is installed and started. All of them answer on loopback and ask the same mock model server."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.parts import load
from benchmarks.parts.processes import NotStarted, running
from reef.config import Config

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOKEN = "bench-token"
WORKERS = ("listen", "workers")
"""The key of serve.yaml that says how many gateway processes there are."""
REEF_INFRA = "reef-infra==0.1.3"
"""0.2.0 was withdrawn by its authors: "published before 0.2 was ready"."""
LITELLM = "litellm[proxy]>=1.108,<1.109"
"""Far above 1.82.7 and 1.82.8, which carried malicious code; 1.110.2 wants a package that PyPI does not have."""
PORTKEY = "@portkey-ai/gateway@1.15.2"
INSTALL_S = 900


class Missing(Exception):
    """A system cannot be had here; the message says why."""


@dataclass(frozen=True)
class System:
    """One running system."""

    name: str
    url: str
    pid: int
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a system finds what it needs.

    ``upstream`` is the mock without its ``/v1``; ``folder`` is this run's, ``environments`` holds what is installed for peers.
    """

    upstream: str
    folder: Path
    environments: Path


Plan = tuple[list[str], dict[str, str], dict[str, str]]
"""A command, its environment and the headers that requests to it need."""
_BEARER = {"authorization": f"Bearer {TOKEN}"}


@contextlib.contextmanager
def started(name: str, place: Place) -> Iterator[System]:
    """Start one system, installing it first where it is not; it answers when this yields.

    Raises:
        Missing: it cannot be installed or started here.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command, environment, headers = SYSTEMS[name](place, port)
    try:
        with running(
            command,
            log=place.folder / f"{name}.log",
            environment=environment,
            ready=lambda: load.answers(url, headers=headers),
        ) as process:
            yield System(name, url, process.pid, headers)
    except NotStarted as error:
        raise Missing(str(error)) from None


def _mock(place: Place, port: int) -> Plan:
    return [sys.executable, str(HERE / "mock_upstream.py"), str(port)], {}, {}


def _bare(place: Place, port: int) -> Plan:
    return [sys.executable, str(HERE / "bare.py"), str(port), f"{place.upstream}/v1"], {}, {}


def _reef(place: Place, port: int, *, name: str = "reef", settings: Sequence[str] = ()) -> Plan:
    command = [sys.executable, "-m", "reef", "serve", "--upstream", f"{place.upstream}/v1", "--model", "m", "--port", str(port)]
    for setting in (f"storage.dir={place.folder / name}", *settings):
        command += ["--set", setting]
    headers = {**_BEARER, "x-reef-scenario": "default", "x-reef-session": "bench"}
    return command, {"REEF_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}, headers


def _reef_off(place: Place, port: int) -> Plan:
    return _reef(place, port, name="reef-off", settings=["storage.record=false"])


def _reef_two(place: Place, port: int) -> Plan:
    section, key = WORKERS
    if key not in getattr(Config(), section).__class__.model_fields:
        raise Missing(f"this version has no {section}.{key}")
    return _reef(place, port, name="reef-2", settings=[f"{section}.{key}=2"])


def _reef_infra(place: Place, port: int) -> Plan:
    python = _environment(place.environments / "reef-infra", REEF_INFRA, at_least=(3, 12))
    folder = place.folder
    command = [str(python.parent / "reef"), "serve", "--reef.token", TOKEN, "--inference.upstream-url", place.upstream]
    command += ["--inference.upstream-model", "m", "--storage.agent-record-dir", str(folder / "reef-infra")]
    command += ["--reef.run-dir", str(folder / "reef-infra-run"), "--reef.port", str(port)]
    return command, {}, {**_BEARER, "x-reef-scenario": "default"}


def _litellm(place: Place, port: int) -> Plan:
    python = _environment(place.environments / "litellm", LITELLM, at_least=(3, 10))
    file = place.folder / "litellm.yaml"
    params = f'{{model: openai/m, api_base: "{place.upstream}/v1", api_key: none}}'
    file.write_text(f"model_list:\n  - {{model_name: m, litellm_params: {params}}}\ngeneral_settings: {{master_key: {TOKEN}}}\n")
    # its list of prices comes from the package and not from the network; the test key is short
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    return [str(python.parent / "litellm"), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)], environment, _BEARER


def _portkey(place: Place, port: int) -> Plan:
    folder = place.environments / "portkey"
    script = folder / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Missing("it needs node and npm")
    if not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _install([npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", "--ignore-scripts", PORTKEY])
    headers = {**_BEARER, "x-portkey-provider": "openai", "x-portkey-custom-host": f"{place.upstream}/v1"}
    return [node, str(script), f"--port={port}", "--headless"], {"NODE_ENV": "production"}, headers


SYSTEMS: dict[str, Callable[[Place, int], Plan]] = {
    "mock": _mock,
    "bare": _bare,
    "reef-off": _reef_off,
    "reef": _reef,
    "reef-2": _reef_two,
    "reef-infra": _reef_infra,
    "litellm": _litellm,
    "portkey": _portkey,
}
"""In the order they are started and shown."""


def _environment(folder: Path, package: str, *, at_least: tuple[int, int]) -> Path:
    """The Python of a virtual environment with ``package``; it is made where it is not there."""
    python = folder / "bin" / "python"
    if python.exists():
        return python
    base = _python(at_least)
    _install([base, "-m", "venv", str(folder)])
    _install([str(python), "-m", "pip", "install", "--quiet", package], undo=folder)
    return python


def _python(at_least: tuple[int, int]) -> str:
    """Some Python that is new enough and runs."""
    found = [sys.executable, *(f"python3.{minor}" for minor in range(14, 9, -1))]
    found += [str(file) for file in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"), reverse=True)]
    for python in found:
        test = f"import sys; sys.exit(sys.version_info < {at_least})"
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if subprocess.run([python, "-c", test], capture_output=True, timeout=20).returncode == 0:
                return python
    raise Missing(f"it needs Python {at_least[0]}.{at_least[1]} or newer")


def _install(command: list[str], *, undo: Path | None = None) -> None:
    print(f"installing: {' '.join(command)}", flush=True)
    try:
        subprocess.run(command, check=True, timeout=INSTALL_S, capture_output=True, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        if undo is not None:
            shutil.rmtree(undo)
        said = getattr(error, "stderr", "") or str(error)
        raise Missing(f"it cannot be installed: {said.strip()[-500:]}") from None


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
