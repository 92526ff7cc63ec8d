"""The release controller: every way a scenario, a candidate or a head comes about or changes.

Publishing has three stages, in this order. The commit object is stored in the artifact repository; nothing points at it yet. Then one SQL
transaction writes the release, moves the head by compare-and-swap, and settles candidate, verdict, consumed reports and recipe state.
Then branch and tag follow. A crash before the transaction leaves an unused commit, one after it leaves refs that :meth:`Controller.repair`
mends; either way the head is the old or the new one, whole.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import sqlalchemy as sa
import structlog

from reef.artifacts.tree import content_id as content_id_of
from reef.errors import Conflict, InvalidRequest, NotFound, ReefError, StaleHead, StorageError
from reef.experience.database import write
from reef.releases import chain, mirror, rows, schema, statements
from reef.releases.store import ReleaseStore
from reef.types import JSON, Candidate, CandidateState, Component, Decision, Release, Tree, Verdict

log = structlog.get_logger()

_STATE_AFTER = {
    Decision.PROMOTE: CandidateState.RELEASED,
    Decision.REJECT: CandidateState.REJECTED,
    Decision.INCONCLUSIVE: CandidateState.INCONCLUSIVE,
}


class Controller(ReleaseStore):
    """Changes of scenarios, chains and candidates. Threads and processes may each have one."""

    def ensure_scenario(self, name: str, *, starter: Tree) -> Release:
        """Create a scenario with ``starter`` as its release 1, unless it is there; return its head.

        Of several that create it at once one wins, and all get the winner's release.

        Raises:
            InvalidRequest: the name is not allowed.
        """
        mirror.check_scenario_name(name)
        with contextlib.suppress(NotFound):
            return self.head(name)
        content_id = content_id_of(starter)
        trailers = {"Reef-Scenario": name, "Reef-Step": 1, "Reef-Operation": "import"}
        commit = self.artifacts.commit(starter, message="Starter harness", trailers=trailers)

        def create(tx: sa.Connection) -> None:
            tx.execute(schema.scenarios.insert().values(name=name, created_at=time.time()))

        try:
            return self._publish(
                name, expected_head=0, also=create, content_id=content_id, commit=commit, operation="import", summary="Starter harness"
            )
        except StaleHead:
            return self.head(name)

    def open_candidate(
        self,
        *,
        scenario: str,
        component: Component,
        recipe: str,
        base_step: int,
        branch: str,
        commit: str,
        content_id: str,
        summary: str,
        reports: Sequence[str],
    ) -> Candidate:
        """Register a proposed change whose bytes are in the artifact repository already, on ``branch``.

        Raises:
            NotFound: no such release to start from, or no such commit.
            InvalidRequest: ``content_id`` is not that of the commit's files.
        """
        self.release(scenario, base_step)
        if content_id_of(self.artifacts.read(commit)) != content_id:
            raise InvalidRequest(
                f"commit {commit[:12]} has another content id than {content_id[:12]}", hint="Take it from content_id(tree)."
            )
        candidate = Candidate(
            id=f"c-{secrets.token_hex(6)}",
            scenario=scenario,
            component=component,
            recipe=recipe,
            base_step=base_step,
            branch=branch,
            commit=commit,
            content_id=content_id,
            state=CandidateState.PROPOSED,
            summary=summary,
            reason="",
            reports=tuple(reports),
            created_at=time.time(),
        )
        with self._writing() as tx:
            tx.execute(schema.candidates.insert().values(rows.candidate_values(candidate)))
        if self.artifacts.ref(branch) != commit:
            self.artifacts.set_ref(branch, commit)
        return candidate

    def mark(self, candidate_id: str, state: CandidateState, reason: str = "") -> None:
        """Move a candidate on without a verdict: to ``judging``, or to an end before any trial.

        Raises:
            NotFound: no such candidate.
            Conflict: it has come to its end already, or ``released`` is asked for, which only :meth:`settle` gives.
        """
        if state is CandidateState.RELEASED:
            raise Conflict(f"{candidate_id} cannot be marked released", hint="Settle it with a verdict.")
        self.candidate(candidate_id)
        with self._writing() as tx:
            statements.move(tx, candidate_id, state, reason)

    def settle(
        self,
        candidate: Candidate,
        verdict: Verdict,
        *,
        expected_head: int,
        consumed: Sequence[str] = (),
        state: Mapping[str, JSON] | None = None,
    ) -> Release | None:
        """Bring a candidate to its end, in one transaction: verdict and trials, state, consumed reports, recipe state and, where the
        verdict is ``promote``, the release and the head. All of it or nothing.

        Args:
            candidate: as opened.
            verdict: what the gate said.
            expected_head: the step it was judged against.
            consumed: reports its recipe is done with.
            state: the recipe's new state; None leaves it as it is.

        Returns:
            The new release, or None where there is none.

        Raises:
            StaleHead: ``promote``, and the head is another one by now.
            Conflict: the candidate is settled already, its bytes are the head's, or a report was consumed by another settlement.
        """

        def settle(tx: sa.Connection) -> None:
            statements.move(tx, candidate.id, _STATE_AFTER[verdict.decision], verdict.reason)
            rows.write_verdict(tx, candidate.id, verdict)
            statements.consume(tx, candidate.scenario, candidate.recipe, consumed, candidate=candidate.id)
            if state is not None:
                statements.write_state(tx, candidate.scenario, candidate.recipe, state)

        if verdict.decision is not Decision.PROMOTE:
            with self._writing() as tx:
                settle(tx)
            return None
        head = self._expect(candidate.scenario, expected_head)
        if candidate.content_id == head.content_id:
            raise Conflict(f"candidate {candidate.id} is the same as release {head.step}: no change", hint="Settle it as inconclusive.")
        commit = self.artifacts.commit(
            self.artifacts.read(candidate.commit),
            parents=[head.commit, candidate.commit],
            message=f"{candidate.summary}\n\n{verdict.reason}",
            trailers={
                "Reef-Scenario": candidate.scenario,
                "Reef-Step": head.step + 1,
                "Reef-Operation": "train",
                "Reef-Base": candidate.base_step,
                "Reef-Recipe": candidate.recipe,
                "Reef-Candidate": candidate.id,
                "Reef-Verdict": f"{verdict.decision} {verdict.effect:+.3f} in {verdict.pairs} pairs",
                "Reef-Report": candidate.reports,
            },
        )
        return self._publish(
            candidate.scenario,
            expected_head=expected_head,
            also=settle,
            content_id=candidate.content_id,
            commit=commit,
            operation="train",
            component=candidate.component,
            recipe=candidate.recipe,
            candidate=candidate.id,
            summary=candidate.summary,
        )

    def rollback(self, scenario: str, step: int, *, expected_head: int | None = None) -> Release:
        """Publish the content of an earlier release again, as a new step.

        Raises:
            NotFound: no such release.
            StaleHead: the head is not ``expected_head``, or moved meanwhile.
            Conflict: that content is what serves now.
        """
        target = self.release(scenario, step)
        head = self._expect(scenario, expected_head)
        if target.content_id == head.content_id:
            raise Conflict(f"release {head.step} of {scenario} already has the content of release {step}", hint="There is nothing to do.")
        commit = self.artifacts.commit(
            self.artifacts.read(target.commit),
            parents=[head.commit],
            message=f"Back to release {step}\n\n{target.summary}",
            trailers={"Reef-Scenario": scenario, "Reef-Step": head.step + 1, "Reef-Operation": "rollback", "Reef-Base": step},
        )
        return self._publish(
            scenario,
            expected_head=head.step,
            content_id=target.content_id,
            commit=commit,
            operation="rollback",
            component=target.component,
            summary=f"Back to release {step}",
        )

    def consume(self, scenario: str, recipe: str, reports: Sequence[str]) -> None:
        """Note reports a recipe passes over for good; those it has consumed already stay as they are."""
        with self._writing() as tx:
            there = statements.consumed(tx, recipe, reports)
            statements.consume(tx, scenario, recipe, [report for report in reports if report not in there], candidate=None)

    def set_recipe_state(self, scenario: str, recipe: str, state: Mapping[str, JSON]) -> None:
        """Replace a recipe's state outside a settlement."""
        with self._writing() as tx:
            statements.write_state(tx, scenario, recipe, state)

    def repair(self) -> list[str]:
        """Mend what a crash left: refs behind the chain, abandoned work trees, candidates whose judge is gone. Says what was mended.

        Called by the learner when it starts, and by nobody else: it alone judges candidates, so those half-judged are its own of before.
        """
        mended = self.artifacts.prune()
        with self._writing() as tx:
            open_ones = sa.select(schema.candidates.c.id).where(schema.candidates.c.state.not_in(statements.FINAL))
            for candidate_id in tx.execute(open_ones).scalars().all():
                statements.move(tx, candidate_id, CandidateState.ABANDONED, "The learner stopped while it was being judged.")
                mended.append(f"candidate {candidate_id} is abandoned")
        names = list(self.scenarios())
        return mended + mirror.repair(
            self.artifacts,
            chains=lambda: (self.releases(name) for name in names),
            candidates=(candidate for name in names for candidate in self.candidates(name)),
        )

    def _publish(
        self,
        scenario: str,
        *,
        expected_head: int,
        content_id: str,
        commit: str,
        operation: str,
        summary: str,
        component: Component = Component.HARNESS,
        recipe: str = "",
        candidate: str | None = None,
        also: Callable[[sa.Connection], None] = lambda _tx: None,
    ) -> Release:
        """Write a release and move the head, with whatever ``also`` writes, in one transaction; then let the refs follow."""
        try:
            with self._writing() as tx:
                also(tx)
                previous = statements.head(tx, scenario) if expected_head else None
                if previous is not None and previous.step != expected_head:
                    raise statements.stale(scenario, expected=expected_head, actual=previous.step)
                release = chain.seal(
                    scenario=scenario,
                    step=expected_head + 1,
                    content_id=content_id,
                    commit=commit,
                    operation=operation,
                    component=component,
                    recipe=recipe,
                    candidate=candidate,
                    summary=summary,
                    previous_hash=previous.hash if previous else chain.GENESIS,
                    created_at=time.time(),
                )
                statements.append(tx, release)
        except sa.exc.IntegrityError as error:
            actual = self.scenarios().get(scenario, 0)
            if actual == expected_head:
                raise
            raise statements.stale(scenario, expected=expected_head, actual=actual) from error  # another publisher wrote this step
        try:
            mirror.follow(self.artifacts, head=lambda: self.head(scenario), published=release)
        except ReefError as error:  # the release is made; its refs are mended at the next start
            log.warning("refs do not follow", scenario=scenario, step=release.step, error=error.message)
        return release

    def _expect(self, scenario: str, expected_head: int | None) -> Release:
        head = self.head(scenario)
        if expected_head is not None and head.step != expected_head:
            raise statements.stale(scenario, expected=expected_head, actual=head.step)
        return head

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        try:
            with write(self._engine).begin() as tx:
                yield tx
        except sa.exc.OperationalError as error:
            raise StorageError(f"the database refused the change: {error.orig}", hint="Is the disk full, or a writer stuck?") from error
