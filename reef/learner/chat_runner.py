"""Trials without a coding agent: the task's prompt is one chat request, and what is answered is the outcome."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reef.artifacts.tree import check_path
from reef.errors import ConfigError
from reef.evaluation.execution import NO_SETUP
from reef.learner.model import GatewayModel
from reef.types import File, Setup, Tree

CHAT = "chat"
"""What ``evaluation.adapter`` says where there is no agent, and the harness is none of the model's business."""
RULES = "rules"
"""The same where the rules of the harness are the system message."""
WITHOUT_AGENT = (CHAT, RULES)
RULES_FILE = "AGENTS.md"


@dataclass(frozen=True, slots=True)
class Answered:
    """Implements :class:`reef.evaluation.execution.Episode`."""

    workspace: Path
    answer: str
    duration_s: float
    fault: Literal["harness", "infrastructure"] | None = None
    detail: str = ""

    @property
    def run_command(self) -> Callable[..., Any]:
        return _nothing_to_run


@dataclass(frozen=True, slots=True)
class ChatRunner:
    """Implements :class:`reef.evaluation.execution.Runner`.

    Args:
        model_for: gives what to ask, of a scenario.
        rules: whether it is told the rules of the harness.
    """

    model_for: Callable[[str], GatewayModel]
    rules: bool = False

    @contextlib.contextmanager
    def run(
        self,
        tree: Tree,
        *,
        prompt: str,
        files: Mapping[str, str | File],
        scenario: str,
        session: str,
        release: int | None,
        setup: Setup = NO_SETUP,
    ) -> Iterator[Answered]:
        """Ask once.

        Raises:
            ConfigError: the task needs a sandbox.
            UpstreamError: the model did not answer; a fault of the infrastructure.
        """
        if setup.command or setup.container is not None:
            raise ConfigError("a task with a set-up command or a container cannot be one request", hint="Set evaluation.adapter.")
        workspace = Path(tempfile.mkdtemp(prefix="reef-chat-"))
        try:
            for name, given in files.items():
                check_path(name)
                target = workspace / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(given.encode() if isinstance(given, str) else given.data)
            started = time.monotonic()
            answer = self.model_for(scenario).ask([*self._system(tree), {"role": "user", "content": prompt}], purpose=session)
            yield Answered(workspace, answer, time.monotonic() - started)
        finally:
            shutil.rmtree(workspace, ignore_errors=True)

    def _system(self, tree: Tree) -> list[dict[str, str]]:
        """As a program does that fetches the harness for its system message, `recipes.selfplay` say."""
        told = tree[RULES_FILE].data.decode("utf-8", "replace").strip() if self.rules and RULES_FILE in tree else ""
        return [{"role": "system", "content": told}] if told else []


def _nothing_to_run(*_arguments: object, **_options: object) -> object:
    raise ConfigError("a grader that runs commands needs an agent's sandbox, and evaluation.adapter names no agent", hint="Name one.")
