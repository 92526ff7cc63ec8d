"""Judging weights: the same tasks and the same gate as for a harness, with the candidate under a name that no user asks for.

Both sides run the head's harness; what differs is the model they ask for. As soon as it is being judged, a candidate's LoRA is brought to
the engine by :mod:`reef.learner.staging`, and a whole model gets an engine of its own from :mod:`reef.learner.judge_engine`.
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
from reef.config import ENGINE, JUDGE, Config
from reef.errors import ConfigError, InvalidTree, UpstreamError
from reef.evaluation.evaluator import Evaluator
from reef.evaluation.execution import Episode, LocalExecution, Runner
from reef.evaluation.verdicts import undecided
from reef.experience.store import ExperienceStore
from reef.harness.episode import EpisodeRunner
from reef.learner.chat_runner import RULES, WITHOUT_AGENT, ChatRunner
from reef.learner.harness_judge import HarnessJudge
from reef.learner.model import GatewayModel
from reef.releases import staging
from reef.releases.controller import Controller
from reef.serving.policy import staged_name
from reef.types import Candidate, Component, Release, Tree, Verdict

STAGED_WITHIN_S = 180.0
"""Bound on the wait for a LoRA, and for what else the start of an engine and the sending of full weights take beyond their own bounds."""
POLL_S = 0.1
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
"""Files that could run code where they are loaded."""


class ModelJudge(HarnessJudge):
    """Implements :class:`reef.learner.loop.Judge` for LoRAs and whole models.

    Args:
        why_not: says why weights of a name could not be staged; empty where nothing is known to be wrong.
    """

    def __init__(self, *, config: Config, controller: Controller, store: ExperienceStore, why_not: Callable[[str], str]) -> None:
        super().__init__(config=config, controller=controller, store=store)
        if not config.serving.vllm.wanted:
            raise ConfigError("weights cannot be judged without an engine", hint="Set serving.vllm.model, or serving.vllm.attach.")
        self._why_not = why_not

    def admit(self, tree: Tree, *, base: Tree) -> None:
        kind = folders.kind_of(tree)
        if kind not in (Kind.LORA, Kind.CHECKPOINT):
            raise InvalidTree(f"the candidate is no weights but a {kind}", hint="A recipe for weights makes a LoRA or a whole model.")
        if kind is Kind.CHECKPOINT and not self._config.judges_full_weights:
            raise InvalidTree(
                "there is no engine to judge a whole model on", hint="Set training.method: full, and an engine in serving.vllm."
            )
        for path in tree:
            if path.endswith(PICKLED):
                raise InvalidTree(f"{path} could run code where it is loaded", hint="Weights are kept as safetensors.")

    def judge(self, candidate: Candidate, *, tree: Tree, head: Release, head_tree: Tree, progress: Callable[[str], None]) -> Verdict:
        if not self.tasks:
            return undecided("there are no evaluation tasks: set evaluation.tasks in serve.yaml")
        before = head.components.get(Component.MODEL.value)
        full = folders.kind_of(tree) is Kind.CHECKPOINT
        if others := self._in_the_way(candidate.scenario, full=full):
            return undecided(
                f"the engine has the weights of {others}, and full weights cannot be beside any others: another engine is needed"
            )
        vllm = self._config.serving.vllm
        names = {"candidate": staged_name(candidate.scenario, candidate.id)}
        names["head"] = vllm.served_name if before is None else staged_name(candidate.scenario, head.step)
        progress("starting an engine for it" if full else "bringing it to the engine")
        self._await(names["candidate"], within_s=STAGED_WITHIN_S + (vllm.startup_timeout_s if full else 0))
        if before is not None:
            self._await(names["head"], within_s=STAGED_WITHIN_S + (vllm.sync_timeout_s if full else 0))
        runner = _TwoModels(
            self._runner(f"{ENGINE}/{names['head']}", progress),
            self._runner(f"{JUDGE if full else ENGINE}/{names['candidate']}", progress),
        )
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

    def _in_the_way(self, scenario: str, *, full: bool) -> str:
        """The other scenarios whose weights the engine has, where those and these cannot be beside each other."""
        with self._controller.engine.connect() as connection:
            heads = [weights for weights in staging.wanted(connection, keep=1) if weights.head and weights.scenario != scenario]
        read = self._controller.artifacts.read
        found = [weights.scenario for weights in heads if full or folders.kind_of(read(weights.content.commit)) is Kind.CHECKPOINT]
        return ", ".join(found)

    def _await(self, name: str, *, within_s: float) -> None:
        """Wait until an engine has some weights.

        Raises:
            UpstreamError: it does not get them.
        """
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            with self._controller.engine.connect() as connection:
                if name in staging.names(connection):
                    return
            if why := self._why_not(name):
                raise UpstreamError(f"{name} is not on the engine: {why}", hint="`reef status` shows the engine; its log has the details.")
            time.sleep(POLL_S)
        raise UpstreamError(f"{name} was not on the engine within {within_s:.0f} s", hint="`reef status` shows the engine.")

    def _runner(self, named: str, progress: Callable[[str], None]) -> Runner:
        if (adapter := self._config.evaluation.adapter) in WITHOUT_AGENT:
            return ChatRunner(lambda scenario: self._model(named, scenario), rules=adapter == RULES)
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
