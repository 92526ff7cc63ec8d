"""The engine of a candidate with full weights: there while the candidate is tried, and gone with it and with whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reef import config as configuration
from reef import process
from reef.artifacts import checkpoints, tree
from reef.config import JUDGE, Config
from reef.learner.judge_engine import JudgeEngine
from reef.releases import staging
from reef.serving.engine import cores
from reef.serving.engine.client import EngineClient
from reef.supervisor import _hold_port
from reef.types import Candidate, CandidateState, Component
from tests.support.engine import START_S, marked, require_vllm
from tests.support.gateway import until
from tests.support.weights import SCENARIO, Lab

RUN_IT = """
import threading
from reef import process
from reef.artifacts.repository import ArtifactRepository
from reef.experience.database import connect
from reef.learner.judge_engine import JudgeEngine
from reef.releases.controller import Controller

config = process.child_config()
controller = Controller(connect(config.database_url), ArtifactRepository(config.state_dir / "artifacts.git"), hold=())
JudgeEngine(controller, config=config, stop=threading.Event()).start(interval_s=0.1)
threading.Event().wait()
"""


def configured(lab: Lab, *, port: int) -> Config:
    vllm = {"model": str(lab.model), "dtype": "float32", "max_model_len": 512, "judge_engine": {"port": port, "nice": 5}}
    return configuration.load(serving={"vllm": vllm}, training={"method": "full"}, storage={"dir": str(lab.folder)})


def tried(lab: Lab, folder: Path) -> Candidate:
    """A candidate that is being judged."""
    head = lab.controller.head(SCENARIO)
    commit = checkpoints.publish(lab.artifacts, folder, branch="candidates/default/one", parent=head.commit, message="a whole model")
    candidate = lab.controller.open_candidate(
        scenario=SCENARIO, component=Component.MODEL, recipe="sft", base_step=head.step, branch="candidates/default/one", commit=commit,
        content_id=tree.content_id(lab.artifacts.read(commit)), summary="a whole model", reports=(),
    )  # fmt: skip
    lab.controller.mark(candidate.id, CandidateState.JUDGING)
    return candidate


def noted(lab: Lab) -> set[str]:
    with lab.engine.connect() as connection:
        return staging.names(connection)


def test_a_candidate_that_no_engine_can_serve_is_told_with_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    require_vllm()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    (broken / "model.safetensors").write_bytes(b"no weights")
    lab = Lab(tmp_path, broken)
    name = f"{SCENARIO}.{tried(lab, broken).id}"
    with _hold_port("127.0.0.1", 0) as held:
        engine = JudgeEngine(lab.controller, config=configured(lab, port=held.getsockname()[1]), stop=threading.Event())

        def told() -> str:
            engine.look()
            return engine.why_not(name)

        try:
            assert "ended with" in until(told, within_s=START_S)
        finally:
            engine.end()
    until(lambda: not marked(tmp_path / "judge" / "run"), within_s=60)
    assert noted(lab) == set()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_candidate_has_an_engine_while_it_is_tried_and_none_outlives_a_learner_that_was_killed(tmp_path: Path) -> None:
    require_vllm()
    from reef.serving.models import tiny

    model = tiny(tmp_path / "tiny", seed=1)
    lab, run = Lab(tmp_path, model), tmp_path / "judge" / "run"
    candidate = tried(lab, model)
    name = f"{SCENARIO}.{candidate.id}"
    with _hold_port("127.0.0.1", 0) as held:
        config = configured(lab, port=held.getsockname()[1])
        variables = {**os.environ, process.CONFIG: config.model_dump_json(), "OMP_NUM_THREADS": "1"}
        learner = subprocess.Popen([sys.executable, "-c", RUN_IT], env=variables)
        try:
            until(lambda: name in noted(lab), within_s=START_S)
            assert EngineClient(config.serving.vllm.judge_url, timeout_s=60).models() == (name,)
            assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in marked(run)} == {5}
            bound = f"{cores.VARIABLE}={cores.judging()}".encode()
            assert all(bound in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in marked(run))
        finally:
            learner.kill()
            learner.wait(30)
        until(lambda: not marked(run), within_s=60)
        again = JudgeEngine(lab.controller, config=config, stop=(stop := threading.Event()))
        again.start(interval_s=0.1)
        try:
            until(lambda: name in noted(lab) and marked(run), within_s=START_S)
            lab.controller.mark(candidate.id, CandidateState.ABANDONED)
            until(lambda: not marked(run) and not noted(lab), within_s=60)
        finally:
            stop.set()


def test_the_engine_of_candidates_is_an_upstream_that_nobody_else_may_be_called() -> None:
    full = {"serving": {"vllm": {"model": "tiny"}}, "training": {"method": "full"}}
    config = configuration.load(**full)
    assert list(config.named_upstreams) == ["engine", JUDGE]
    assert JUDGE not in configuration.load(serving=full["serving"]).named_upstreams
    with pytest.raises(configuration.loading.ConfigError, match="the engine that full weights are judged on"):
        configuration.load(**full, upstreams={JUDGE: {"url": "http://u/v1"}})
