"""Everything the gateway's routes work with, put together once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import sqlalchemy as sa

from reef.artifacts.repository import ArtifactRepository
from reef.config import Config
from reef.experience import database, schema  # noqa: F401 - registers its tables
from reef.experience.committer import InThread, Storing
from reef.experience.store import ExperienceStore
from reef.experience.tokens import TokenStore
from reef.experience.writer import Writer
from reef.gateway.auth import Auth
from reef.gateway.commit_watch import CommitWatch
from reef.gateway.scenario_index import ScenarioIndex
from reef.gateway.token_index import TokenIndex
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
    tokens: TokenIndex
    watch: CommitWatch

    @classmethod
    def build(cls, config: Config, *, auth: Auth | None = None, storing: Storing | None = None) -> GatewayState:
        """Open what ``config`` names, creating what is missing.

        Args:
            storing: what stores exchanges; by default this process does.
        """
        engine = database.connect(config.database_url)
        artifacts = ArtifactRepository(config.state_dir / "artifacts.git")
        controller = Controller(engine, artifacts)
        database.create_tables(engine)
        scenarios = ScenarioIndex(controller=controller, config=config.scenarios, starter=starter)
        auth = auth or Auth.from_environment(config)
        return cls(
            config=config,
            engine=engine,
            writer=Writer(engine, storing=storing or InThread(engine, redact=config.storage.redact)),
            store=ExperienceStore(engine),
            upstream=OpenAIUpstream(config.upstream),
            auth=auth,
            controller=controller,
            artifacts=artifacts,
            scenarios=scenarios,
            tokens=(tokens := TokenIndex(TokenStore(engine), auth=auth)),
            watch=CommitWatch(engine, [tokens.refresh, scenarios.refresh]),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Threads and connections, from start to a clean stop: whatever was answered is on disk at the end."""
        self.writer.start()
        async with self.upstream:
            try:
                await asyncio.to_thread(self.tokens.reload)
                await self.scenarios.start()
                self.watch.start()
                yield
            finally:
                await asyncio.to_thread(self.watch.stop)
                await self.scenarios.stop()
                await self.writer.aclose()
                self.engine.dispose()
