"""The learner process: `python -m reef.learner`, started by the supervisor."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading

import structlog

from reef import plugins, process
from reef.artifacts.repository import ArtifactRepository
from reef.experience.database import connect
from reef.experience.store import ExperienceStore
from reef.learner.harness_judge import HarnessJudge
from reef.learner.housekeeping import Housekeeping
from reef.learner.loop import Activity, Learner
from reef.learner.model import GatewayModel
from reef.releases.controller import Controller

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
    controller = Controller(engine, artifacts, hold=config.release.hold)
    for repaired in controller.repair():
        log.warning("repaired after a crash", what=repaired)
    url, token = os.environ[process.GATEWAY_URL], os.environ[process.PROPOSER_TOKEN]
    recipe_class = plugins.load("reef.recipes", config.reef.recipe)

    def tell(activity: Activity) -> None:
        process.write_atomically(config.state_dir / "run" / "learner.json", json.dumps(dataclasses.asdict(activity)))

    store = ExperienceStore(engine)
    judge = HarnessJudge(config=config, controller=controller, store=store)
    learner = Learner(
        recipe=recipe_class(batch_size=config.reef.batch_size, options=config.reef.options),
        store=store,
        artifacts=artifacts,
        controller=controller,
        judge=judge,
        model_for=lambda scenario: GatewayModel(url=url, token=token, model=config.default_model, scenario=scenario),
        adapter=config.evaluation.adapter,
        max_staleness=config.reef.max_staleness,
        withheld=judge.withheld,
        tell=tell,
    )
    Housekeeping(engine, config.storage.retention, folder=config.state_dir / "run", stop=stop).start()
    learner.run(stop, poll_interval_s=config.reef.poll_interval_s)


def _leave(stop: threading.Event) -> None:
    """End at once, without waiting for the threads that run trials: whatever step is under way is safe to repeat."""
    stop.set()
    os._exit(0)


if __name__ == "__main__":
    main()
