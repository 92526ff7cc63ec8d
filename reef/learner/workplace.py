"""What a machine needs to run trials of a coding agent: its CLI, a sandbox, and the gateway within reach."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from reef import process
from reef.config import Config
from reef.errors import SandboxError
from reef.evaluation.ray_execution import Tools
from reef.harness.adapter import load_adapter
from reef.harness.bounds import PROCESSES, bounds
from reef.harness.bridge import Bridge, listens
from reef.harness.episode import EpisodeRunner
from reef.harness.install import install
from reef.harness.sandbox import Sandbox
from reef.learner.model import GatewayModel


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessWorkplace:
    """Implements :class:`reef.evaluation.ray_execution.Workplace`.

    On the gateway's machine its unix socket is taken. On any other one a bridge to ``remote_url`` stands in for it, so that a sandbox
    without a network reaches the gateway and nothing else there too.
    """

    adapter: str
    sandbox: str
    gateway_socket: Path
    gateway_url: str
    """Reached from the gateway's machine."""
    remote_url: str
    """Reached from others; empty: there are none."""
    token: str = field(repr=False)
    """Of trials."""
    model: str
    judge_model: str
    timeout_s: float
    memory_mb: int | None = None
    """Of each command of a trial; None: half of what the machine has that it runs on."""
    processes: int = PROCESSES

    @classmethod
    def of(cls, config: Config) -> HarnessWorkplace:
        """As the supervisor's child ``config`` is of has it."""
        return cls(
            adapter=config.evaluation.adapter,
            sandbox=config.evaluation.sandbox,
            gateway_socket=Path(config.state_dir, "run", "gateway.sock"),
            gateway_url=os.environ[process.GATEWAY_URL],
            remote_url=config.execution.gateway_url,
            token=os.environ[process.TRIAL_TOKEN],
            model=config.default_model,
            judge_model=config.evaluation.judge_model or config.default_model,
            timeout_s=config.evaluation.trial_timeout_s,
            memory_mb=config.evaluation.trial_memory_mb,
            processes=config.evaluation.trial_processes,
        )

    def open_here(self) -> Tools:
        """The same for the gateway's own machine, where it need not be up yet."""
        return self._tools(self.gateway_socket, self.gateway_url)

    def open(self) -> Tools:
        """Install the agent unless it is there, and find the gateway.

        Raises:
            InstallError: the agent cannot be installed.
            SandboxError: the gateway cannot be reached from this machine, or the sandbox does not work.
        """
        path, url = self.gateway_socket, self.gateway_url
        if not listens(path):
            if not self.remote_url:
                raise SandboxError(
                    f"the gateway is not on {socket.gethostname()}, and how it is reached from there is not said",
                    hint="Set execution.gateway_url, listen on an address that other machines reach, and set REEF_TOKEN.",
                )
            path, url = Bridge(self.remote_url).path, self.remote_url
        return self._tools(path, url)

    def _tools(self, path: Path, url: str) -> Tools:
        adapter = load_adapter(self.adapter)
        runner = EpisodeRunner(
            adapter=adapter,
            installed=install(adapter),
            sandbox=Sandbox(self.sandbox, bounds=bounds(memory_mb=self.memory_mb, processes=self.processes)),
            gateway_socket=path,
            gateway_url=url,
            token=self.token,
            model=self.model,
            timeout_s=self.timeout_s,
        )
        return Tools(runner, lambda scenario: self.model_for(scenario, url=url))

    def model_for(self, scenario: str, *, url: str, model: str = "") -> GatewayModel:
        """The model of graders that ask one, or another. Its exchanges are trials': no proposer is shown them."""
        return GatewayModel(url=url, token=self.token, model=model or self.judge_model, scenario=scenario, temperature=0.0)
