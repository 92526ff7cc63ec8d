"""Brings an agent's CLI to this machine, for trials: pinned, from npm, checked by ``--version``, one folder for each version."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reef.errors import ReefError
from reef.harness.adapter import Adapter, InstallSpec

_HELPERS = "helpers"
_NPM_TIMEOUT_S = 600
_VERSION_TIMEOUT_S = 60
_LOCK_TIMEOUT_S = _NPM_TIMEOUT_S + _VERSION_TIMEOUT_S


class InstallError(ReefError):
    """An agent's CLI could not be installed."""

    type = "install_error"


@dataclass(frozen=True, slots=True)
class Installed:
    """A CLI that is there and answered with the right version."""

    command: Path
    """What to run; needs :attr:`path` first on PATH."""
    path: tuple[Path, ...]
    """Folders with the Node it runs on, and with its helpers."""
    folders: tuple[Path, ...]
    """What must be readable for it to run."""
    version: str


def cache_root() -> Path:
    """$REEF_CACHE, or ~/.cache/reef."""
    return Path(os.environ.get("REEF_CACHE") or Path.home() / ".cache" / "reef")


def platform_name() -> str:
    """This machine as in ``NODE_PACKAGES``, e.g. ``linux-x64``."""
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine().lower(), platform.machine())
    return f"{platform.system().lower()}-{machine}"


def install(adapter: Adapter, *, root: Path | None = None) -> Installed:
    """Install the adapter's CLI unless it is there, and say where.

    Processes that do this at the same time wait for each other. A folder appears under its name only when it is whole.

    Raises:
        InstallError: npm is missing or failed, took too long, or what it brought is of another version.
    """
    spec = adapter.install
    root = (root or cache_root()).resolve()
    system_node = _system_node(spec.node_min)
    name = f"{adapter.name}-{spec.version}" + ("" if system_node else "-node")
    folder = root / "adapters" / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(f"{name}.lock")):
            if not folder.is_dir():
                _install(spec, folder=folder, system_node=system_node)
    return _describe(spec, folder, system_node)


def _install(spec: InstallSpec, *, folder: Path, system_node: Path | None) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError(f"{spec.package} needs npm, which is not on PATH", hint="Install Node.js with npm, any version.")
    packages = [f"{spec.package}@{spec.version}", *spec.packages]
    if system_node is None:
        packages.append(_node_package(spec))
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.part-") as part:
        target = Path(part, "tree")
        target.mkdir()
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
        options += ["--fetch-timeout=60000", "--fetch-retries=2"]
        _call([npm, "install", "--prefix", str(target), *options, *packages], cwd=target, env=os.environ, timeout_s=_NPM_TIMEOUT_S)
        _link_binaries(spec, target)
        _verify(spec, _describe(spec, target, system_node), home=Path(part))
        target.rename(folder)


def _link_binaries(spec: InstallSpec, folder: Path) -> None:
    """Do what the package's install script would: a script that may do anything is not run for it."""
    links = {Path("node_modules", ".bin", spec.command): spec.binaries} if spec.binaries else {}
    links |= {Path(_HELPERS, name): paths for name, paths in spec.helpers.items()}
    for link, paths in links.items():
        program = folder / "node_modules" / paths.get(platform_name(), "")
        if not program.is_file():
            raise InstallError(f"{spec.package} has no {link.name} for {platform_name()}", hint=f"It has one for {', '.join(paths)}.")
        (folder / link).parent.mkdir(exist_ok=True)
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(os.path.relpath(program, (folder / link).parent))


def _verify(spec: InstallSpec, installed: Installed, *, home: Path) -> None:
    """npm quietly takes an older version when the Node is too old, and a CLI asked for its version may write into HOME."""
    path = os.pathsep.join([*map(str, installed.path), "/usr/bin", "/bin"])
    said = _call([str(installed.command), "--version"], cwd=home, env={"PATH": path, "HOME": str(home)}, timeout_s=_VERSION_TIMEOUT_S)
    if spec.version not in re.findall(r"\d+(?:\.\d+)+[\w.+-]*", said):
        raise InstallError(f"{spec.package} says it is {said.strip()[:100]!r}, not {spec.version}", hint="Try `npm cache clean --force`.")


def _describe(spec: InstallSpec, folder: Path, system_node: Path | None) -> Installed:
    command = folder / "node_modules" / ".bin" / spec.command
    helpers = (folder / _HELPERS,) if spec.helpers else ()
    if system_node is None:
        package = _node_package(spec).rpartition("@")[0]
        return Installed(command, (*helpers, folder / "node_modules" / package / "bin"), (folder,), spec.version)
    # a Node under somebody's HOME (nvm, fnm) has its library beside its `bin`
    return Installed(command, (*helpers, system_node.parent), (folder, system_node.parent.parent), spec.version)


def _node_package(spec: InstallSpec) -> str:
    try:
        return spec.node_packages[platform_name()]
    except KeyError:
        raise InstallError(
            f"{spec.package} needs Node {spec.node_min} and there is none to fetch for {platform_name()}",
            hint=f"Install Node {spec.node_min} or newer and put it on PATH.",
        ) from None


def _system_node(minimum: str) -> Path | None:
    """The node on PATH if it is new enough. Its real path: a version manager's shim would look for its settings in HOME."""
    found = shutil.which("node")
    if found is None:
        return None
    try:
        said = _call([found, "--print", "process.version + ' ' + process.execPath"], cwd=None, env=os.environ, timeout_s=20)
        version, _, executable = said.strip().partition(" ")
        return Path(executable) if _numbers(version) >= _numbers(minimum) else None
    except (InstallError, ValueError):
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.removeprefix("v").split("-")[0].split("."))


def _call(argv: list[str], *, cwd: Path | None, env: Mapping[str, str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{Path(argv[0]).name} took longer than {timeout_s} s", hint="Is the npm registry reachable?") from None
    except OSError as error:
        raise InstallError(f"{argv[0]} cannot be run: {error.strerror}", hint="Is it executable?") from error
    if done.returncode != 0:
        problem = (done.stderr or done.stdout).strip()[-1000:]
        raise InstallError(f"`{' '.join(argv[:2])}` failed: {problem}", hint="Is the npm registry reachable?")
    return done.stdout


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time and let go with it, however it ends."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InstallError(f"another process has held {path} for {_LOCK_TIMEOUT_S} s", hint="End that process.") from None
                time.sleep(0.1)
        yield
