"""A small deployment for the tests of releases: a database, a repository, a controller, and short ways to make candidates."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import sqlalchemy as sa

from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import content_id
from reef.experience.database import connect, create_tables
from reef.releases import mirror
from reef.releases.controller import Controller
from reef.types import Candidate, Component, Decision, File, Release, Tree, Trial, TrialEnd, Verdict
from tests.support.databases import url_of

STARTER: Tree = {"AGENTS.md": File(b"# Rules\n"), "skills/a/SKILL.md": File(b"a\n")}


def verdict(decision: Decision, *, trials: int = 2) -> Verdict:
    sides = [
        Trial(f"task-{n // 2}", ("head", "candidate")[n % 2], n // 2, "id", TrialEnd.SCORED, float(n % 2), "said so", f"trial:{n}", 0.5)
        for n in range(trials)
    ]
    return Verdict(decision, f"{decision} it", 1.0, 0.2, 1.0, trials // 2, trials // 2, 0, 40.0, 0.03, 1.5, tuple(sides))


@dataclasses.dataclass(frozen=True)
class Bench:
    engine: sa.Engine
    artifacts: ArtifactRepository
    controller: Controller

    @classmethod
    def open(cls, folder: Path) -> Bench:
        engine = connect(url_of(folder))
        artifacts = ArtifactRepository(folder / "artifacts.git")
        return cls(engine, artifacts, Controller(engine, artifacts))

    @classmethod
    def create(cls, folder: Path) -> Bench:
        bench = cls.open(folder)
        create_tables(bench.engine)
        bench.controller.ensure_scenario("default", starter=STARTER)
        return bench

    def candidate(self, text: str, *, reports: tuple[str, ...] = (), scenario: str = "default", also: Tree | None = None) -> Candidate:
        """A candidate against the head whose rules are ``text``."""
        head = self.controller.head(scenario)
        tree = {**STARTER, "AGENTS.md": File(text.encode()), **(also or {})}
        commit = self.artifacts.commit(tree, parents=[head.commit], message=text)
        return self.controller.open_candidate(
            scenario=scenario,
            component=Component.HARNESS,
            recipe="cordis",
            base_step=head.step,
            branch=mirror.candidate_branch(scenario, commit[:10]),
            commit=commit,
            content_id=content_id(tree),
            summary=f"Say {text}",
            reports=reports,
        )

    def promote(self, text: str, *, reports: tuple[str, ...] = ()) -> Release:
        candidate = self.candidate(text, reports=reports)
        release = self.controller.settle(candidate, verdict(Decision.PROMOTE), expected_head=candidate.base_step, consumed=reports)
        assert release is not None
        return release

    def consumed(self) -> dict[str, str | None]:
        with self.engine.connect() as connection:
            return {row.report: row.candidate for row in connection.execute(sa.text("SELECT report, candidate FROM consumptions"))}
