"""Where commands of a harness run: bubblewrap without a network and without this machine's files, or, where there is none, a process
group of its own with a clean environment. Either way with bounds on time, memory, processes and output, after which nothing of it is left
running."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from reef.errors import SandboxError
from reef.harness import relay
from reef.harness.bounds import INTERVAL_S, Bounds, Watch
from reef.harness.bounds import bounds as default_bounds

Kind = Literal["bubblewrap", "none"]

RELAY_PORT = 8900
"""Where the gateway seems to be from inside."""
OUTPUT_BYTES = 4 << 20
"""Of each stream the last so many bytes are kept: the final text and the final error are there."""
_TMP_BYTES = 1 << 29
_NOTHING: Mapping[Path, Path] = {}
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf", "passwd", "ssl")
_SOCKET = "/run/reef/gateway.sock"
_RELAY = "/run/reef/relay.py"


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended, or was ended."""

    returncode: int
    """As in a shell: 128 + n for one that signal n ended."""
    stdout: str
    stderr: str
    timed_out: bool
    duration_s: float
    exceeded: str = ""
    """What it took too much of and was ended for, in words; also the last line of ``stderr``."""


class Sandbox:
    """Runs commands apart from this machine.

    Args:
        kind: ``auto`` takes bubblewrap where it works.
        bounds: of each command; half of this machine's memory where nothing is said.

    Raises:
        SandboxError: bubblewrap was asked for and does not work here.
    """

    def __init__(self, kind: str = "auto", *, bounds: Bounds | None = None) -> None:
        problem = bubblewrap_problem() if kind != "none" else ""
        if kind == "bubblewrap" and problem:
            raise SandboxError(f"bubblewrap does not work here: {problem}", hint="apt install bubblewrap, or evaluation.sandbox: none.")
        self.kind: Kind = "none" if kind == "none" or problem else "bubblewrap"
        self._bounds = bounds or default_bounds()

    @property
    def isolated(self) -> bool:
        """Whether the inside has neither a network nor this machine's files."""
        return self.kind == "bubblewrap"

    def inside(self, folder: Path) -> Path:
        """What a writable folder should be called inside. Always the same where it can be: an agent tells its model where it works, and
        prompts that differ in nothing else are answered from the model server's prefix cache, and compare."""
        return Path("/reef") if self.isolated else folder

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        timeout_s: float,
        writable: Mapping[Path, Path] = _NOTHING,
        readable: Sequence[Path] = (),
        gateway_socket: Path | None = None,
    ) -> Completed:
        """Run ``argv`` to its end.

        Args:
            cwd: as it is called inside; must lie in a writable folder.
            env: the whole environment; nothing of ours is passed on.
            writable: folders by what they are called inside. Without isolation inside is outside: give :meth:`inside`.
            readable: folders visible inside under the same path, beside the read-only system and this Python.
            gateway_socket: forwarded from 127.0.0.1:8900 inside. Only when :attr:`isolated`; otherwise the gateway is reached as it is.

        Raises:
            SandboxError: the command could not be started.
        """
        if not self.isolated:
            return _run(argv, cwd=cwd, env=env, timeout_s=timeout_s, bounds=self._bounds)
        command = list(argv)
        if gateway_socket is not None:
            command = [sandbox_python(), "-I", "-S", _RELAY, str(RELAY_PORT), _SOCKET, *argv]
        outside = _bubblewrap(writable=writable, readable=readable, gateway_socket=gateway_socket)
        argv = [*outside, "--chdir", str(cwd), "--", *command]
        completed = _run(argv, cwd=Path("/"), env=env, timeout_s=timeout_s, bounds=self._bounds)
        if completed.returncode != 0 and completed.stderr.startswith("bwrap: "):
            raise SandboxError(f"the sandbox did not start: {completed.stderr.strip()[:500]}", hint="Try `reef doctor`.")
        return completed


@functools.cache
def bubblewrap_problem() -> str:
    """Why bubblewrap cannot be used here; empty where it can. Tried once: containers often have it and forbid it."""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed"
    try:
        probe = [*_bubblewrap(writable={}, readable=(), gateway_socket=None), "--", sandbox_python(), "-I", "-S", "-c", ""]
        done = subprocess.run(probe, env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"


def python_folder() -> Path:
    """The folder of this Python's own installation (not of a virtual environment): its ``bin`` serves the commands in a sandbox."""
    return Path(sys.base_prefix).resolve()


def sandbox_python() -> str:
    """The Python that is run inside."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    inside = python_folder() / "bin" / name
    return str(inside) if inside.exists() else str(Path(sys.executable).resolve())


def _bubblewrap(*, writable: Mapping[Path, Path], readable: Sequence[Path], gateway_socket: Path | None) -> list[str]:
    """The outer command. The environment is not in it (``--setenv``) but inherited from a clean one: anybody on this machine can read
    the arguments of a process, and one of the variables is a token."""
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "reef"]
    argv += ["--ro-bind", "/usr", "/usr"]
    for folder in _SYSTEM:
        path = Path(folder)
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), folder]
        elif path.is_dir():
            argv += ["--ro-bind", folder, folder]
    for name in _ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp", "--dir", "/run/reef"]  # noqa: S108
    argv += ["--size", str(_TMP_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
    for path in dict.fromkeys((python_folder(), *(path.resolve() for path in readable))):
        if not path.is_relative_to("/usr"):
            argv += ["--ro-bind", str(path), str(path)]
    for inside, outside in writable.items():
        argv += ["--bind", str(outside), str(inside)]
    if gateway_socket is not None:
        argv += ["--ro-bind", relay.__file__, _RELAY, "--bind", str(gateway_socket), _SOCKET]
    return argv


def _run(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float, bounds: Bounds) -> Completed:
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,  # several agents read a piped stdin into the prompt, or wait for its end
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"{argv[0]} cannot be started: {error.strerror}", hint="Is it installed? Try `reef doctor`.") from error
    with process:
        assert process.stdout and process.stderr
        try:
            watch = Watch(process.pid, bounds)
            output, timed_out, exceeded = _collect(process, process.stdout, process.stderr, deadline=started + timeout_s, watch=watch)
        finally:
            _end(process)
    returncode = process.returncode if process.returncode >= 0 else 128 - process.returncode
    stdout, stderr = (data[-OUTPUT_BYTES:].decode("utf-8", errors="replace") for data in output)
    if exceeded:
        stderr += f"\nended by Reef: it took {exceeded}"
    return Completed(returncode, stdout, stderr, timed_out, time.monotonic() - started, exceeded)


def _collect(process: subprocess.Popen[bytes], *streams: IO[bytes], deadline: float, watch: Watch) -> tuple[list[bytearray], bool, str]:
    """Read both streams to their end, or until the deadline or a bound is passed; says which. A grandchild that keeps a pipe open does not
    keep us here."""
    output = [bytearray() for _ in streams]
    with selectors.DefaultSelector() as selector:
        for stream, kept in zip(streams, output, strict=True):
            selector.register(stream, selectors.EVENT_READ, kept)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return output, True, ""
            ready = selector.select(min(remaining, INTERVAL_S))
            if not ready and process.poll() is not None:
                return output, False, ""
            for key, _ in ready:
                _read(selector, key)
            if exceeded := watch.exceeded():
                return output, False, exceeded
    while process.poll() is None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return output, True, ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(remaining, INTERVAL_S))
        if exceeded := watch.exceeded():
            return output, False, exceeded
    return output, False, ""


def _read(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    data = os.read(key.fd, 1 << 16)
    if not data:
        selector.unregister(key.fileobj)
        return
    kept: bytearray = key.data
    kept += data
    if len(kept) > 2 * OUTPUT_BYTES:  # cut rarely: each cut copies
        del kept[:-OUTPUT_BYTES]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process group; bubblewrap takes everything in its process namespace along."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
