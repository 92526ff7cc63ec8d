"""Tasks that need a container: one for each episode, in which the agent and the checks run one after the other.

The workspace lies inside, where the image has it, and is copied out and in around each command: what the image holds there must not be
hidden by a folder of ours. The agent's own program, its Python and the relay to the gateway are mounted read-only, so an image needs no
part of Reef; it must be of this machine's kind (glibc). All runs as the inside's root: an episode's root is open to nobody else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from reef.errors import SandboxError
from reef.harness import relay
from reef.harness.sandbox import RELAY_PORT, Completed, Sandbox, python_folder, sandbox_python
from reef.types import Container

INSIDE = Path("/reef")
"""What an episode's root is called inside."""
_SOCKET, _RELAY = "/run/reef/gateway.sock", "/run/reef/relay.py"
_START_S, _COPY_S = 120.0, 120.0
_NO_FOLDERS: Mapping[str, Path] = {}
_PASSED_ON = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "HOME", "PATH")
"""What the client needs of our environment."""
_building = threading.Lock()


def problem() -> str:
    """Why containers cannot be run here; empty where they can."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    try:
        done = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else (said[-1] if said else f"exit code {done.returncode}")


def run_arguments(
    container: Container, *, image: str, name: str, root: Path, readable: Sequence[Path] = (), gateway_socket: Path | None = None
) -> list[str]:
    """The command that starts a container, which then waits for commands."""
    argv = ["docker", "run", "--detach", "--init", "--rm", "--name", name, "--hostname", "reef", "--entrypoint", "sleep"]
    argv += ["--user", "0:0", "--cap-drop", "NET_RAW", "--security-opt", "no-new-privileges", "--pids-limit", "4096"]
    argv += [] if container.network else ["--network", "none"]
    argv += [] if container.cpus is None else ["--cpus", f"{container.cpus:g}"]
    argv += [] if container.memory_mb is None else ["--memory", f"{container.memory_mb}m"]
    argv += [part for key, value in container.env for part in ("--env", f"{key}={value}")]
    mounts = [(str(root), str(INSIDE), False)]
    mounts += [(str(path), str(path), True) for path in dict.fromkeys((python_folder(), *(path.resolve() for path in readable)))]
    if gateway_socket is not None:
        mounts += [(relay.__file__, _RELAY, True), (str(gateway_socket), _SOCKET, False)]
    for outside, inside, read_only in mounts:
        argv += ["--mount", f"type=bind,src={outside},dst={inside}" + (",readonly" if read_only else "")]
    return [*argv, image, "infinity"]


def exec_arguments(argv: Sequence[str], *, name: str, cwd: str, variables: Sequence[str], gateway: bool) -> list[str]:
    """The command that runs ``argv`` in a container. The values of variables are taken from the client's own environment: anybody on
    this machine can read the arguments of a process, and one of them is a token."""
    relayed = [sandbox_python(), "-I", "-S", _RELAY, str(RELAY_PORT), _SOCKET] if gateway else []
    return ["docker", "exec", "--workdir", cwd, *(part for key in variables for part in ("--env", key)), name, *relayed, *argv]


@contextlib.contextmanager
def started(
    container: Container, *, root: Path, readable: Sequence[Path] = (), gateway_socket: Path | None = None
) -> Iterator[InContainer]:
    """A running container, until the context is left.

    Raises:
        SandboxError: there is no Docker, the image cannot be had, or it does not start.
    """
    if found := problem():
        raise SandboxError(
            f"the task needs a container ({container.why or container.image}), and Docker cannot be used: {found}",
            hint="Install Docker (apt install docker.io) and start it; `docker version` must name a server.",
        )
    image = container.image or _built(container)
    name = f"reef-{uuid.uuid4().hex[:16]}"
    arguments = run_arguments(container, image=image, name=name, root=root, readable=readable, gateway_socket=gateway_socket)
    try:
        _do(arguments, timeout_s=_START_S, what=f"the image {image} does not start")
        asked = ["docker", "inspect", "--format", "{{.Config.WorkingDir}}", name]
        workdir = _do(asked, timeout_s=_START_S, what=f"{image} cannot be looked at").strip()
        yield InContainer(name, root=root, workdir=workdir)
    finally:
        with contextlib.suppress(SandboxError):  # what root made there is to be removed by whom we are
            _do(["docker", "exec", name, "chmod", "-R", "a+rwX", str(INSIDE)], timeout_s=_COPY_S, what="")
        with contextlib.suppress(SandboxError):
            _do(["docker", "rm", "--force", "--volumes", name], timeout_s=_COPY_S, what="")


class InContainer:
    """A container that runs; see :class:`reef.harness.place.Place`."""

    inside = INSIDE
    isolated = True

    def __init__(self, name: str, *, root: Path, workdir: str) -> None:
        self._name = name
        self._work = root / "work"
        own = workdir not in ("", "/")
        self._workdir = workdir if own else str(INSIDE / "work")  # which is mounted: nothing to copy
        self._copied = {workdir: self._work} if own else {}

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout_s: float,
        gateway_socket: Path | None = None,
        folders: Mapping[str, Path] = _NO_FOLDERS,
    ) -> Completed:
        """Run ``argv`` where the image says that work is done, else in the workspace as it is mounted.

        One that does not end in time lives on until the container is removed.
        """
        places = {**self._copied, **folders}
        if folders:  # whatever the agent put in their place
            _do(["docker", "exec", self._name, "rm", "-rf", *folders], timeout_s=_COPY_S, what="cannot make room in the container")
        for inside, outside in places.items():
            _do(["docker", "cp", f"{outside}/.", f"{self._name}:{inside}"], timeout_s=_COPY_S, what=f"cannot copy {inside} in")
        command = exec_arguments(argv, name=self._name, cwd=self._workdir, variables=list(env), gateway=gateway_socket is not None)
        client = {key: os.environ[key] for key in _PASSED_ON if key in os.environ and key not in env}
        command[0] = shutil.which("docker") or command[0]  # PATH is the one of the inside
        done = Sandbox("none").run(command, cwd=self._work.parent, env={**client, **env}, timeout_s=timeout_s)
        for inside, outside in places.items():
            _empty(outside)
            _do(["docker", "cp", f"{self._name}:{inside}/.", str(outside)], timeout_s=_COPY_S, what=f"cannot copy {inside} out")
        return done


def _built(container: Container) -> str:
    """The image of a build context, by its content: built once."""
    context = Path(container.build)
    digest = hashlib.sha256()
    for path in sorted(path for path in context.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(context)}\0{path.stat().st_mode}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    tag = f"reef-task:{digest.hexdigest()[:24]}"
    with _building:
        listed = _do(["docker", "images", "--quiet", tag], timeout_s=_COPY_S, what="Docker's images cannot be listed")
        if not listed.strip():
            argv = ["docker", "build", "--quiet", "--tag", tag, str(context)]
            _do(argv, timeout_s=container.build_timeout_s, what=f"the image of {context} cannot be built")
    return tag


def _do(argv: Sequence[str], *, timeout_s: float, what: str) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"{what}: {error}", hint="Does `docker ps` work?") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise SandboxError(f"{what}: {said[-500:]}", hint="Try it by hand: " + " ".join(argv)[:300])
    return done.stdout.decode(errors="replace")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
