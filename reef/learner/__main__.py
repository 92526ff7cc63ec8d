"""The learner process: `python -m reef.learner`, started by the supervisor."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import threading

import structlog

from reef import collector, plugins, process
from reef.artifacts.repository import ArtifactRepository
from reef.config import Config
from reef.experience.database import connect
from reef.experience.store import ExperienceStore
from reef.learner.canary import CanaryJudge
from reef.learner.full_weights import FullWeights
from reef.learner.ground import TrainingGround
from reef.learner.harness_judge import HarnessJudge
from reef.learner.housekeeping import Housekeeping
from reef.learner.judge_engine import JudgeEngine
from reef.learner.loop import Activity, Judge, Learner
from reef.learner.model import GatewayModel
from reef.learner.model_judge import ModelJudge
from reef.learner.routing_judge import RoutingJudge
from reef.learner.sealed import SealedLooks
from reef.learner.shadow import Again, Shadows
from reef.learner.staging import Stager
from reef.learner.workplace import HarnessWorkplace
from reef.releases.controller import Controller
from reef.releases.rollout import Plan
from reef.serving.engine.client import EngineClient
from reef.serving.sync.bring import Order
from reef.types import Component

log = structlog.get_logger()

COLLECT = (700, 1, 1)
"""When the collector looks: at what is new, at what survived one look, at all of it. Every look into the database leaves rings behind
(SQLAlchemy's statements). With Python's own (700, 10, 10) they pile up in an idle learner, which benchmarks/soak.py takes for a leak."""


def main() -> None:
    process.configure_logging()
    config = process.child_config()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _leave(stop))
    process.when_parent_ends(lambda: os._exit(1))
    engine = connect(config.database_url)
    artifacts = ArtifactRepository(config.state_dir / "artifacts.git")
    plan = Plan.configured(config.release, min_effect=config.evaluation.min_effect, alpha=config.evaluation.alpha)
    controller = Controller(engine, artifacts, hold=config.release.hold, plan=plan)
    for repaired in controller.repair():
        log.warning("repaired after a crash", what=repaired)
    url, token = os.environ[process.GATEWAY_URL], os.environ[process.PROPOSER_TOKEN]
    recipe_class = plugins.load("reef.recipes", config.reef.recipe)

    def tell(activity: Activity) -> None:
        process.write_atomically(config.state_dir / "run" / "learner.json", json.dumps(dataclasses.asdict(activity)))

    store = ExperienceStore(engine)
    ground = TrainingGround.of(config, stop=stop)
    suppliers = _suppliers(config, controller, ground=ground, stop=stop)
    for supplier in suppliers:
        supplier.start(interval_s=config.reef.poll_interval_s)

    def why_not(name: str) -> str:
        return next(filter(None, (supplier.why_not(name) for supplier in suppliers)), "")

    recipe = recipe_class(batch_size=config.reef.batch_size, options=config.reef.options)
    judge = HarnessJudge(config=config, controller=controller, store=store)
    judges: dict[Component, Judge] = {Component.HARNESS: judge}
    for part in recipe.parts:
        if part.component is Component.MODEL:
            judges[part.component] = ModelJudge(config=config, controller=controller, store=store, why_not=why_not)
        elif part.component is Component.ROUTING:
            judges[part.component] = RoutingJudge(config=config, controller=controller, store=store)
    looks = SealedLooks(controller, measure=judge.measure, tell=tell)
    shadows = Shadows(
        controller=controller,
        store=store,
        tasks=judge.tasks,
        tools=lambda: HarnessWorkplace.of(config).open_here(),
        ask=Again(store, url=url, token=os.environ[process.TRIAL_TOKEN], timeout_s=config.evaluation.trial_timeout_s),
        tell=tell,
    )
    learner = Learner(
        recipe=recipe,
        store=store,
        artifacts=artifacts,
        controller=controller,
        judge=judges,
        model_for=lambda scenario: GatewayModel(url=url, token=token, model=config.default_model, scenario=scenario),
        adapter=config.evaluation.adapter,
        max_staleness=config.reef.max_staleness,
        withheld=judge.withheld,
        tell=tell,
        chore=lambda: looks.work_once() or shadows.work_once(),
        ground=ground,
    )
    CanaryJudge(controller, folder=config.state_dir / "run", stop=stop).start(interval_s=config.reef.poll_interval_s)
    collector.spare()
    gc.set_threshold(*COLLECT)
    Housekeeping(engine, config.storage.retention, folder=config.state_dir / "run", stop=stop).start()
    learner.run(stop, poll_interval_s=config.reef.poll_interval_s)


def _suppliers(
    config: Config, controller: Controller, *, ground: TrainingGround, stop: threading.Event
) -> tuple[Stager | JudgeEngine, ...]:
    """What keeps the engines supplied with weights."""
    vllm = config.serving.vllm
    if not vllm.wanted:
        return ()
    client = EngineClient(vllm.url, key=os.environ.get(vllm.key_env, ""))
    order = Order(url=vllm.url, key_env=vllm.key_env, way=vllm.sync, name="", stage_s=vllm.sync_timeout_s)
    full = None
    if vllm.sync != "none":
        full = FullWeights(controller, client=client, order=order, base=ground.base, run=config.state_dir / "run", stop=stop)
    keep = config.reef.max_staleness + 1
    stager = Stager(controller, client=client, folder=config.state_dir / "weights", keep=keep, stop=stop, full=full)
    return (stager, JudgeEngine(controller, config=config, stop=stop)) if config.judges_full_weights else (stager,)


def _leave(stop: threading.Event) -> None:
    """End at once, without waiting for the threads that run trials: whatever step is under way is safe to repeat."""
    stop.set()
    os._exit(0)


if __name__ == "__main__":
    main()
