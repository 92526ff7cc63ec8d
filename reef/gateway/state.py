"""Everything the gateway's routes work with, put together once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import sqlalchemy as sa

from reef.artifacts.repository import ArtifactRepository
from reef.config import Config
from reef.experience import database, schema  # noqa: F401 - registers its tables
from reef.experience.store import ExperienceStore
from reef.experience.writer import Writer
from reef.gateway.auth import Auth
from reef.gateway.scenario_index import ScenarioIndex
from reef.harness.tree import starter
from reef.releases.controller import Controller
from reef.serving.upstream import OpenAIUpstream


@dataclass(frozen=True)
class GatewayState:
    """The rooms as one gateway process sees them. FastAPI routes reach it as ``request.app.state.reef``."""

    config: Config
    engine: sa.Engine
    writer: Writer
    store: ExperienceStore
    upstream: OpenAIUpstream
    auth: Auth
    controller: Controller
    artifacts: ArtifactRepository
    scenarios: ScenarioIndex

    @classmethod
    def build(cls, config: Config, *, auth: Auth | None = None) -> GatewayState:
        """Open what ``config`` names, creating what is missing."""
        engine = database.connect(config.database_url)
        artifacts = ArtifactRepository(config.state_dir / "artifacts.git")
        controller = Controller(engine, artifacts)
        database.create_tables(engine)
        return cls(
            config=config,
            engine=engine,
            writer=Writer(engine),
            store=ExperienceStore(engine),
            upstream=OpenAIUpstream(config.upstream),
            auth=auth or Auth.from_environment(config),
            controller=controller,
            artifacts=artifacts,
            scenarios=ScenarioIndex(controller=controller, engine=engine, config=config.scenarios, starter=starter),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Threads and connections, from start to a clean stop: whatever was answered is on disk at the end."""
        self.writer.start()
        async with self.upstream:
            try:
                await self.scenarios.start()
                yield
            finally:
                await self.scenarios.stop()
                await self.writer.aclose()
                self.engine.dispose()
