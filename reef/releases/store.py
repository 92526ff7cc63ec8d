"""The read side: scenarios, chains, candidates and verdicts as they are now."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from reef.artifacts.repository import ArtifactRepository
from reef.errors import NotFound
from reef.releases import rows, schema, statements
from reef.types import JSON, Candidate, CandidateState, Component, Release, Tree, Trial, Verdict


class ReleaseStore:
    """What was released and tried. Threads and processes may each have one.

    Args:
        engine: the database, its tables created.
        artifacts: where the bytes are.
    """

    def __init__(self, engine: sa.Engine, artifacts: ArtifactRepository) -> None:
        self.engine = engine
        self.artifacts = artifacts

    def scenarios(self) -> dict[str, int]:
        """The step of each scenario's head, by name."""
        with self.engine.connect() as connection:
            return statements.steps(connection)

    def head(self, scenario: str) -> Release:
        """The release that serves now.

        Raises:
            NotFound: there is no such scenario.
        """
        with self.engine.connect() as connection:
            return statements.head(connection, scenario)

    def expect_head(self, scenario: str, step: int | None) -> Release:
        """The release that serves now, where it is the one its caller works on; None for any.

        Raises:
            StaleHead: it is another one.
        """
        head = self.head(scenario)
        if step is not None and head.step != step:
            raise statements.stale(scenario, expected=step, actual=head.step)
        return head

    def release(self, scenario: str, step: int) -> Release:
        """One release.

        Raises:
            NotFound: the chain has no such step.
        """
        query = sa.select(schema.releases).where(schema.releases.c.scenario == scenario, schema.releases.c.step == step)
        with self.engine.connect() as connection:
            row = connection.execute(query).mappings().one_or_none()
            if row is not None:
                return rows.release_from(row)
            head = statements.head(connection, scenario)
        raise NotFound(f"{scenario} has no release {step}", hint=f"It has releases 1 to {head.step}.")

    def releases(self, scenario: str) -> list[Release]:
        """The chain, oldest first; empty for a scenario that does not exist."""
        query = sa.select(schema.releases).where(schema.releases.c.scenario == scenario).order_by(schema.releases.c.step)
        with self.engine.connect() as connection:
            return [rows.release_from(row) for row in connection.execute(query).mappings()]

    def tree(self, scenario: str, step: int) -> Tree:
        """The files of a release."""
        return self.artifacts.read(self.release(scenario, step).commit)

    def diff(self, scenario: str, old: int, new: int) -> str:
        """What changed between two releases, as ``git diff`` shows it, component after component."""
        before, after = self.release(scenario, old).components, self.release(scenario, new).components
        both = [name for name in after if name in before and (name == Component.HARNESS or before[name] != after[name])]
        alone = [f"{'+' if name in after else '-'} {name}\n" for name in sorted(before.keys() ^ after.keys())]
        return "".join([*(self.artifacts.diff(before[name].commit, after[name].commit) for name in both), *alone])

    def candidates(self, scenario: str, *, states: Sequence[CandidateState] | None = None) -> list[Candidate]:
        """A scenario's candidates, oldest first."""
        query = sa.select(schema.candidates).where(schema.candidates.c.scenario == scenario).order_by(schema.candidates.c.seq)
        if states is not None:
            query = query.where(schema.candidates.c.state.in_(states))
        with self.engine.connect() as connection:
            return [rows.candidate_from(row) for row in connection.execute(query).mappings()]

    def candidate(self, candidate_id: str) -> Candidate:
        """One candidate.

        Raises:
            NotFound: there is none of that id.
        """
        with self.engine.connect() as connection:
            row = connection.execute(sa.select(schema.candidates).where(schema.candidates.c.id == candidate_id)).mappings().one_or_none()
        if row is None:
            raise NotFound(f"there is no candidate {candidate_id}", hint="`reef candidates` lists them.")
        return rows.candidate_from(row)

    def verdict(self, candidate_id: str) -> Verdict | None:
        """What the gate said about a candidate, with its trials; None before, and where it was refused without one."""
        trials = sa.select(schema.trials).where(schema.trials.c.candidate == candidate_id).order_by(schema.trials.c.position)
        with self.engine.connect() as connection:
            row = connection.execute(sa.select(schema.verdicts).where(schema.verdicts.c.candidate == candidate_id)).mappings().one_or_none()
            return None if row is None else rows.verdict_from(row, connection.execute(trials).mappings().all())

    def trials_of(self, scenario: str, content_id: str, *, limit: int = 1000) -> list[Trial]:
        """The newest trials that any candidate's verdict holds of these bytes as the head."""
        trials, candidates = schema.trials, schema.candidates
        query = sa.select(trials).join(candidates, candidates.c.id == trials.c.candidate)
        query = query.where(trials.c.content_id == content_id, trials.c.side == "head", candidates.c.scenario == scenario)
        query = query.order_by(candidates.c.seq.desc(), trials.c.position.desc()).limit(limit)
        with self.engine.connect() as connection:
            return [rows.trial_from(row) for row in connection.execute(query).mappings()]

    def spent(self, scenario: str, *, excluding: str = "") -> int:
        """How many candidates of the chain have been judged, those abandoned midway included: each has used its share of the error.

        Args:
            excluding: a candidate to leave out, usually the one to be judged now.
        """
        table = schema.candidates
        query = sa.select(sa.func.count()).where(table.c.scenario == scenario, table.c.judging_at.is_not(None), table.c.id != excluding)
        with self.engine.connect() as connection:
            return connection.execute(query).scalar_one()

    def recipe_state(self, scenario: str, recipe: str) -> dict[str, JSON]:
        """What a recipe keeps between steps; empty at first."""
        table = schema.recipe_state
        with self.engine.connect() as connection:
            found = connection.execute(sa.select(table.c.state).where(table.c.scenario == scenario, table.c.recipe == recipe))
            return found.scalar_one_or_none() or {}
