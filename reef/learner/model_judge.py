"""Judging weights: the same tasks and the same gate as for a harness, with the candidate under a name that no user asks for.

Both sides run the head's harness; what differs is the model they ask for. The candidate's LoRA is brought to the engine by
:mod:`reef.learner.staging` as soon as it is being judged.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from reef import process
from reef.artifacts import folders
from reef.artifacts.folders import Kind
from reef.config import ENGINE, Config
from reef.errors import ConfigError, InvalidTree, UpstreamError
from reef.evaluation.evaluator import Evaluator
from reef.evaluation.execution import Episode, LocalExecution, Runner
from reef.evaluation.verdicts import undecided
from reef.experience.store import ExperienceStore
from reef.harness.episode import EpisodeRunner
from reef.learner.chat_runner import CHAT, ChatRunner
from reef.learner.harness_judge import HarnessJudge
from reef.learner.model import GatewayModel
from reef.releases import staging
from reef.releases.controller import Controller
from reef.serving.policy import staged_name
from reef.types import Candidate, Component, Release, Tree, Verdict

STAGED_WITHIN_S = 180.0
POLL_S = 0.1
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
"""Files that could run code where they are loaded."""


class ModelJudge(HarnessJudge):
    """Implements :class:`reef.learner.loop.Judge` for LoRAs.

    Args:
        why_not: says why weights of a name could not be staged; empty where nothing is known to be wrong.
    """

    def __init__(self, *, config: Config, controller: Controller, store: ExperienceStore, why_not: Callable[[str], str]) -> None:
        super().__init__(config=config, controller=controller, store=store)
        if not config.serving.vllm.wanted:
            raise ConfigError("weights cannot be judged without an engine", hint="Set serving.vllm.model, or serving.vllm.attach.")
        self._why_not = why_not

    def admit(self, tree: Tree, *, base: Tree) -> None:
        if folders.kind_of(tree) is not Kind.LORA:
            raise InvalidTree("the candidate is no LoRA", hint="training.method: lora makes one. Whole models are imported by a person.")
        for path in tree:
            if path.endswith(PICKLED):
                raise InvalidTree(f"{path} could run code where it is loaded", hint="Weights are kept as safetensors.")

    def judge(self, candidate: Candidate, *, tree: Tree, head: Release, head_tree: Tree, progress: Callable[[str], None]) -> Verdict:
        if not self.tasks:
            return undecided("there are no evaluation tasks: set evaluation.tasks in serve.yaml")
        before = head.components.get(Component.MODEL.value)
        names = {"candidate": staged_name(candidate.scenario, candidate.id)}
        names["head"] = self._config.serving.vllm.served_name if before is None else staged_name(candidate.scenario, head.step)
        progress("bringing it to the engine")
        self._await(names["candidate"])
        if before is not None:
            self._await(names["head"])
        runner = _TwoModels(*(self._runner(names[side], progress) for side in ("head", "candidate")))
        asked, workers = self._asked_by_graders(candidate.scenario), self._config.evaluation.parallel
        evaluator = Evaluator(
            execution=LocalExecution(runner=runner, model=asked, workers=workers),
            tasks=self.tasks,
            config=self._config.evaluation,
            spent=self._controller.spent(candidate.scenario, excluding=candidate.id),
            agent=f"{self._agent()} {head.content_id}",
            meter=lambda session: self._used(candidate.scenario, session),
        )
        content_id = f"base:{names['head']}" if before is None else before.content_id
        return evaluator.judge(
            scenario=candidate.scenario,
            candidate_id=candidate.id,
            candidate_tree=head_tree,
            candidate_content_id=candidate.content_id,
            head_tree=head_tree,
            head_content_id=content_id,
            head_step=head.step,
            seed=candidate.id,
            remembered=self._controller.trials_of(candidate.scenario, content_id),
            progress=progress,
        )

    def _await(self, name: str) -> None:
        """Wait until the engine has some weights.

        Raises:
            UpstreamError: it does not get them.
        """
        deadline = time.monotonic() + STAGED_WITHIN_S
        while time.monotonic() < deadline:
            with self._controller.engine.connect() as connection:
                if name in staging.names(connection):
                    return
            if why := self._why_not(name):
                raise UpstreamError(f"{name} is not on the engine: {why}", hint="`reef status` shows the engine; its log has the details.")
            time.sleep(POLL_S)
        raise UpstreamError(f"{name} was not on the engine within {STAGED_WITHIN_S:.0f} s", hint="`reef status` shows the engine.")

    def _runner(self, model: str, progress: Callable[[str], None]) -> Runner:
        named = f"{ENGINE}/{model}"
        if self._config.evaluation.adapter == CHAT:
            return ChatRunner(lambda scenario: self._model(named, scenario))
        agent = self._own_tools(progress).runner
        assert isinstance(agent, EpisodeRunner)
        return dataclasses.replace(agent, model=named)

    def _model(self, model: str, scenario: str) -> GatewayModel:
        url, token = os.environ[process.GATEWAY_URL], os.environ[process.TRIAL_TOKEN]
        return GatewayModel(url=url, token=token, model=model, scenario=scenario, temperature=0.0)

    def _asked_by_graders(self, scenario: str) -> GatewayModel:
        return self._model(self._config.evaluation.judge_model or self._config.default_model, scenario)


class _TwoModels:
    """Runs the head's trials with one model, and the candidate's, which are those of no release, with another."""

    def __init__(self, head: Runner, candidate: Runner) -> None:
        self._head = head
        self._candidate = candidate

    def run(self, tree: Tree, *, release: int | None, **asked: Any) -> AbstractContextManager[Episode]:
        """See :class:`reef.evaluation.execution.Runner`."""
        return (self._candidate if release is None else self._head).run(tree, release=release, **asked)
