"""Where one episode happens: the sandbox, or for tasks that need one a container. The agent, the set-up command before it and the checks
after it all run there, and see the same workspace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from reef.errors import SandboxError
from reef.harness import docker
from reef.harness.sandbox import Completed, Sandbox
from reef.types import Setup

Folders = Mapping[str, Path]
"""By the absolute path at which a command sees them."""
NO_FOLDERS: Folders = {}


class Place(Protocol):
    """An open one."""

    @property
    def inside(self) -> Path:
        """What the episode's root is called inside."""
        ...

    @property
    def isolated(self) -> bool:
        """Whether the gateway is reached by the relay, on the loopback of the inside."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout_s: float,
        gateway_socket: Path | None = None,
        folders: Mapping[str, Path] = NO_FOLDERS,
    ) -> Completed:
        """Run ``argv`` in the workspace.

        Args:
            folders: further ones, by the absolute path at which ``argv`` may read and write them.

        Raises:
            SandboxError: it could not be started.
        """
        ...


class _InSandbox:
    """See :class:`Place`."""

    def __init__(self, sandbox: Sandbox, *, root: Path, setup: Setup, readable: Sequence[Path]) -> None:
        self._sandbox = sandbox
        self._root = root
        self._workdir = setup.workdir
        self._readable = readable
        self.inside = sandbox.inside(root)
        self.isolated = sandbox.isolated

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout_s: float,
        gateway_socket: Path | None = None,
        folders: Mapping[str, Path] = NO_FOLDERS,
    ) -> Completed:
        placed = {**({self._workdir: self._root / "work"} if self._workdir else {}), **folders}
        if placed and not self.isolated:
            raise SandboxError(
                f"the task needs its files at {next(iter(placed))}, which a sandbox that does not isolate cannot give",
                hint="apt install bubblewrap, and leave evaluation.sandbox at auto.",
            )
        return self._sandbox.run(
            argv,
            cwd=Path(self._workdir) if self._workdir else self.inside / "work",
            env=env,
            timeout_s=timeout_s,
            writable={self.inside: self._root, **{Path(path): folder for path, folder in placed.items()}},
            readable=self._readable,
            gateway_socket=gateway_socket,
        )


@contextlib.contextmanager
def opened(
    sandbox: Sandbox, *, root: Path, setup: Setup, readable: Sequence[Path] = (), gateway_socket: Path | None = None
) -> Iterator[Place]:
    """A place for one episode, until the context is left.

    Args:
        root: its folders: ``home``, ``tmp``, ``work`` and what the agent needs.
        setup: says whether it needs a container.
        readable: folders visible inside under the same path.
        gateway_socket: what may be reached from inside.

    Raises:
        SandboxError: it needs Docker, which is not there.
    """
    if setup.container is None:
        yield _InSandbox(sandbox, root=root, setup=setup, readable=readable)
        return
    with docker.started(setup.container, root=root, readable=readable, gateway_socket=gateway_socket) as place:
        yield place
