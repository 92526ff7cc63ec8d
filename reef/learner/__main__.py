"""The learner process: `python -m reef.learner`, started by the supervisor."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading

import structlog

from reef import collector, plugins, process
from reef.artifacts.repository import ArtifactRepository
from reef.experience.database import connect
from reef.experience.store import ExperienceStore
from reef.learner.canary import CanaryJudge
from reef.learner.ground import TrainingGround
from reef.learner.harness_judge import HarnessJudge
from reef.learner.housekeeping import Housekeeping
from reef.learner.loop import Activity, Learner
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
from reef.types import Component

log = structlog.get_logger()


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
    stager = None
    if config.serving.vllm.wanted:
        client = EngineClient(config.serving.vllm.url, key=os.environ.get(config.serving.vllm.key_env, ""))
        keep = config.reef.max_staleness + 1
        stager = Stager(controller, client=client, folder=config.state_dir / "weights", keep=keep, stop=stop)
        stager.start(interval_s=config.reef.poll_interval_s)
    if recipe_class.component is Component.MODEL:
        why_not = stager.why_not if stager is not None else lambda _name: ""
        judge: HarnessJudge = ModelJudge(config=config, controller=controller, store=store, why_not=why_not)
    else:
        judge = HarnessJudge(config=config, controller=controller, store=store)
    routing = RoutingJudge(config=config, controller=controller, store=store)
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
        recipe=recipe_class(batch_size=config.reef.batch_size, options=config.reef.options),
        store=store,
        artifacts=artifacts,
        controller=controller,
        judge=routing if recipe_class.component is Component.ROUTING else judge,
        model_for=lambda scenario: GatewayModel(url=url, token=token, model=config.default_model, scenario=scenario),
        adapter=config.evaluation.adapter,
        max_staleness=config.reef.max_staleness,
        withheld=judge.withheld,
        tell=tell,
        chore=lambda: looks.work_once() or shadows.work_once(),
        ground=TrainingGround.of(config, stop=stop),
    )
    CanaryJudge(controller, folder=config.state_dir / "run", stop=stop).start(interval_s=config.reef.poll_interval_s)
    collector.spare()
    Housekeeping(engine, config.storage.retention, folder=config.state_dir / "run", stop=stop).start()
    learner.run(stop, poll_interval_s=config.reef.poll_interval_s)


def _leave(stop: threading.Event) -> None:
    """End at once, without waiting for the threads that run trials: whatever step is under way is safe to repeat."""
    stop.set()
    os._exit(0)


if __name__ == "__main__":
    main()
