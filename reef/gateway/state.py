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
from reef.gateway import capture
from reef.gateway.auth import Auth
from reef.gateway.commit_watch import CommitWatch
from reef.gateway.keepalive import KeepAlive
from reef.gateway.metrics import Metrics, StoreSize
from reef.gateway.routing import EngineNames, Routing
from reef.gateway.scenario_index import ScenarioIndex
from reef.gateway.token_index import TokenIndex
from reef.gateway.tracing import Tracing
from reef.harness.tree import starter
from reef.releases.controller import Controller
from reef.serving.upstreams import Upstreams


@dataclass(frozen=True)
class GatewayState:
    """The rooms as one gateway process sees them. FastAPI routes reach it as ``request.app.state.reef``."""

    config: Config
    engine: sa.Engine
    writer: Writer
    store: ExperienceStore
    upstreams: Upstreams
    auth: Auth
    controller: Controller
    artifacts: ArtifactRepository
    scenarios: ScenarioIndex
    routing: Routing
    tokens: TokenIndex
    watch: CommitWatch
    metrics: Metrics
    size: StoreSize
    keep_alive: KeepAlive
    tracing: Tracing | None
    captures_tokens: bool
    """Whether what learns needs token ids, and an upstream gives them."""

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
        upstreams = Upstreams(config)
        auth = auth or Auth.from_environment(config)
        return cls(
            config=config,
            engine=engine,
            writer=Writer(engine, storing=storing or InThread(engine, redact=config.storage.redact)),
            store=ExperienceStore(engine),
            upstreams=upstreams,
            auth=auth,
            controller=controller,
            artifacts=artifacts,
            scenarios=scenarios,
            routing=(routing := Routing(artifacts, heads=lambda: scenarios.heads, engine=EngineNames.configured(config))),
            tokens=(tokens := TokenIndex(TokenStore(engine), auth=auth)),
            watch=CommitWatch(engine, [tokens.refresh, scenarios.refresh, routing.refresh]),
            metrics=Metrics(),
            size=StoreSize(engine),
            keep_alive=KeepAlive(after_s=config.listen.keep_alive_s),
            tracing=Tracing.configured(config.telemetry),
            captures_tokens=upstreams.give_tokens and capture.wanted(config),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Threads and connections, from start to a clean stop: whatever was answered is on disk at the end."""
        self.writer.start()
        async with self.upstreams:
            try:
                await asyncio.to_thread(self.tokens.reload)
                await self.scenarios.start()
                self.watch.start()
                self.keep_alive.start()
                yield
            finally:
                await self.keep_alive.stop()
                await asyncio.to_thread(self.watch.stop)
                await self.scenarios.stop()
                await self.writer.aclose()
                if self.tracing is not None:
                    await asyncio.to_thread(self.tracing.close)
                self.engine.dispose()
