"""The read side: scenarios, chains, candidates and verdicts as they are now."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import content_id as content_id_of
from reef.errors import NotFound, ReefError
from reef.releases import chain, rows, schema, statements
from reef.types import JSON, Candidate, CandidateState, Release, Tree, Verdict


class ReleaseStore:
    """What was released and tried. Threads and processes may each have one.

    Args:
        engine: the database, its tables created.
        artifacts: where the bytes are.
    """

    def __init__(self, engine: sa.Engine, artifacts: ArtifactRepository) -> None:
        self._engine = engine
        self.artifacts = artifacts

    def scenarios(self) -> dict[str, int]:
        """The step of each scenario's head, by name."""
        with self._engine.connect() as connection:
            found = connection.execute(sa.select(schema.heads.c.scenario, schema.heads.c.step).order_by(schema.heads.c.scenario))
            return {row.scenario: row.step for row in found}

    def head(self, scenario: str) -> Release:
        """The release that serves now.

        Raises:
            NotFound: there is no such scenario.
        """
        with self._engine.connect() as connection:
            return statements.head(connection, scenario)

    def release(self, scenario: str, step: int) -> Release:
        """One release.

        Raises:
            NotFound: the chain has no such step.
        """
        query = sa.select(schema.releases).where(schema.releases.c.scenario == scenario, schema.releases.c.step == step)
        with self._engine.connect() as connection:
            row = connection.execute(query).mappings().one_or_none()
            if row is not None:
                return rows.release_from(row)
            head = statements.head(connection, scenario)
        raise NotFound(f"{scenario} has no release {step}", hint=f"It has releases 1 to {head.step}.")

    def releases(self, scenario: str) -> list[Release]:
        """The chain, oldest first; empty for a scenario that does not exist."""
        query = sa.select(schema.releases).where(schema.releases.c.scenario == scenario).order_by(schema.releases.c.step)
        with self._engine.connect() as connection:
            return [rows.release_from(row) for row in connection.execute(query).mappings()]

    def tree(self, scenario: str, step: int) -> Tree:
        """The files of a release."""
        return self.artifacts.read(self.release(scenario, step).commit)

    def diff(self, scenario: str, old: int, new: int) -> str:
        """What changed between two releases, as ``git diff`` shows it."""
        return self.artifacts.diff(self.release(scenario, old).commit, self.release(scenario, new).commit)

    def candidates(self, scenario: str, *, states: Sequence[CandidateState] | None = None) -> list[Candidate]:
        """A scenario's candidates, oldest first."""
        query = sa.select(schema.candidates).where(schema.candidates.c.scenario == scenario).order_by(schema.candidates.c.seq)
        if states is not None:
            query = query.where(schema.candidates.c.state.in_(states))
        with self._engine.connect() as connection:
            return [rows.candidate_from(row) for row in connection.execute(query).mappings()]

    def candidate(self, candidate_id: str) -> Candidate:
        """One candidate.

        Raises:
            NotFound: there is none of that id.
        """
        with self._engine.connect() as connection:
            row = connection.execute(sa.select(schema.candidates).where(schema.candidates.c.id == candidate_id)).mappings().one_or_none()
        if row is None:
            raise NotFound(f"there is no candidate {candidate_id}", hint="`reef candidates` lists them.")
        return rows.candidate_from(row)

    def verdict(self, candidate_id: str) -> Verdict | None:
        """What the gate said about a candidate, with its trials; None before, and where it was refused without one."""
        trials = sa.select(schema.trials).where(schema.trials.c.candidate == candidate_id).order_by(schema.trials.c.position)
        with self._engine.connect() as connection:
            row = connection.execute(sa.select(schema.verdicts).where(schema.verdicts.c.candidate == candidate_id)).mappings().one_or_none()
            return None if row is None else rows.verdict_from(row, connection.execute(trials).mappings().all())

    def spent(self, scenario: str, *, excluding: str = "") -> int:
        """How many candidates of the chain have been judged, those abandoned midway included: each has used its share of the error.

        Args:
            excluding: a candidate to leave out, usually the one to be judged now.
        """
        table = schema.candidates
        query = sa.select(sa.func.count()).where(table.c.scenario == scenario, table.c.judging_at.is_not(None), table.c.id != excluding)
        with self._engine.connect() as connection:
            return connection.execute(query).scalar_one()

    def recipe_state(self, scenario: str, recipe: str) -> dict[str, JSON]:
        """What a recipe keeps between steps; empty at first."""
        table = schema.recipe_state
        with self._engine.connect() as connection:
            found = connection.execute(sa.select(table.c.state).where(table.c.scenario == scenario, table.c.recipe == recipe))
            return found.scalar_one_or_none() or {}

    def verify(self, scenario: str) -> list[str]:
        """Check a chain: hashes, order, head, and that each release's bytes have its content id. Empty where all is well."""
        releases = self.releases(scenario)
        head = self.head(scenario)
        found = chain.breaks(releases)
        if releases[-1] != head:
            found.append(f"{scenario}: the head is step {head.step}, the chain ends at step {releases[-1].step}")
        for release in releases:
            try:
                actual = content_id_of(self.artifacts.read(release.commit))
            except ReefError as error:
                found.append(f"{scenario} step {release.step}: {error.message}")
                continue
            if actual != release.content_id:
                found.append(f"{scenario} step {release.step}: the bytes of {release.commit[:12]} have the content id {actual[:12]}")
        return found
