"""The release controller: every way a scenario, a candidate or a head comes about or changes.

Publishing has three stages, in this order. The commit object is stored in the artifact repository; nothing points at it yet. Then one SQL
transaction writes the release, moves the head by compare-and-swap, and settles candidate, verdict, consumed reports and recipe state.
Then branch and tag follow (:mod:`reef.releases.publishing`).
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import changed_paths
from reef.artifacts.tree import content_id as content_id_of
from reef.errors import Conflict, InvalidRequest, NotFound, StaleHead
from reef.failpoints import reach
from reef.releases import mirror, review, rollout, rows, schema, statements
from reef.releases.accepting import STATE_AFTER, accept
from reef.releases.audit import Audit
from reef.releases.publishing import publish, writing
from reef.releases.store import ReleaseStore
from reef.types import JSON, Candidate, CandidateState, Component, Content, Decision, Release, Tree, Verdict

_PROMOTABLE = (CandidateState.HELD, CandidateState.CANARY, CandidateState.INCONCLUSIVE)


class Controller(ReleaseStore):
    """Changes of scenarios, chains and candidates. Threads and processes may each have one.

    Args:
        engine: the database, its tables created.
        artifacts: where the bytes are.
        hold: what a person has to look at before it is released: see :func:`reef.releases.review.why_held`.
        plan: how what the gate promotes is rolled out.
    """

    def __init__(
        self,
        engine: sa.Engine,
        artifacts: ArtifactRepository,
        *,
        hold: Sequence[str] = review.HELD_BY_DEFAULT,
        plan: rollout.Plan = rollout.IMMEDIATE,
    ) -> None:
        super().__init__(engine, artifacts)
        self._hold = tuple(hold)
        self._plan = plan

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
            return publish(
                self, name, expected_head=0, also=create, content_id=content_id, commit=commit, operation="import",
                summary="Starter harness", others={},
            )  # fmt: skip
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
        companions: Mapping[str, Content] | None = None,
    ) -> Candidate:
        """Register a proposed change whose bytes are in the artifact repository already, on ``branch``.

        Args:
            companions: other components that change with it, as a harness that only suits the new weights does.

        Raises:
            NotFound: no such release to start from, or no such commit.
            InvalidRequest: ``content_id`` is not that of the commit's files, or a large file of theirs is not there.
        """
        self.release(scenario, base_step)
        for content in (Content(content_id, commit), *(companions or {}).values()):
            tree = self.artifacts.read(content.commit)
            self.artifacts.large.check(tree)
            if content_id_of(tree) != content.content_id:
                raise InvalidRequest(
                    f"commit {content.commit[:12]} has another content id than {content.content_id[:12]}",
                    hint="Take it from content_id(tree).",
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
            companions={Component(name).value: content for name, content in (companions or {}).items()},
        )
        with writing(self.engine) as tx:
            tx.execute(schema.candidates.insert().values(rows.candidate_values(candidate)))
            reach("candidate.inserted")
        reach("candidate.committed")
        self.artifacts.set_ref(branch, commit)
        return candidate

    def mark(self, candidate_id: str, state: CandidateState, reason: str = "") -> None:
        """Move a candidate on without a verdict: to ``judging``, or to an end before any trial.

        Raises:
            NotFound: no such candidate.
            Conflict: it has come to its end already, or ``released`` is asked for, which only :meth:`settle` and :meth:`promote` give.
        """
        if state is CandidateState.RELEASED:
            raise Conflict(f"{candidate_id} cannot be marked released", hint="Settle it with a verdict.")
        self.candidate(candidate_id)
        with writing(self.engine) as tx:
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
        verdict is ``promote`` and neither a person nor a canary comes before it, the release and the head. All of it or nothing.

        Args:
            candidate: as opened.
            verdict: what the gate said.
            expected_head: the step it was judged against.
            consumed: reports its recipe is done with.
            state: the recipe's new state; None leaves it as it is.

        Returns:
            The new release, or None where there is none: the verdict was another one, or the candidate is held or on canary.

        Raises:
            StaleHead: ``promote``, and the head is another one by now.
            Conflict: the candidate is settled already, its bytes are the head's, or a report was consumed by another settlement.
        """

        state_after, reason, planned = STATE_AFTER[verdict.decision], verdict.reason, None

        def settle(tx: sa.Connection) -> None:
            statements.move(tx, candidate.id, state_after, reason)
            rows.write_verdict(tx, candidate.id, verdict)
            if planned is not None:
                rollout.begin(tx, candidate, verdict, planned)
            reach("settle.verdict")
            statements.consume(tx, candidate.scenario, candidate.recipe, consumed, candidate=candidate.id)
            if state is not None:
                statements.write_state(tx, candidate.scenario, candidate.recipe, state)

        if verdict.decision is Decision.PROMOTE:
            head = self.expect_head(candidate.scenario, expected_head)
            if held := self.why_held(candidate, head=head):
                state_after, reason = CandidateState.HELD, f"waits for a person: {held} ({verdict.reason})"
                planned = self._plan if self._plan.mode is rollout.Mode.SHADOW else None
            elif self._plan.mode is not rollout.Mode.IMMEDIATE:
                state_after, reason, planned = self._rolled_out(candidate, verdict)
        if state_after is not CandidateState.RELEASED:
            with writing(self.engine) as tx:
                settle(tx)
            reach("candidate.settled")
            return None
        return accept(self, candidate, head, operation="train", verdict=verdict, message=verdict.reason, also=settle)

    def _rolled_out(self, candidate: Candidate, verdict: Verdict) -> tuple[CandidateState, str, rollout.Plan | None]:
        """What a promoted candidate becomes instead of a release."""
        if self._plan.mode is rollout.Mode.SHADOW:
            return CandidateState.HELD, f"answers recorded traffic, then waits for a person ({verdict.reason})", self._plan
        if other := rollout.canary(self, candidate.scenario):
            return CandidateState.HELD, f"waits for a person: {other.candidate.id} is on canary ({verdict.reason})", None
        what = "installations" if Component.HARNESS in candidate.components else "sessions"
        return CandidateState.CANARY, f"on canary for {self._plan.share:g} of the {what} ({verdict.reason})", self._plan

    def why_held(self, candidate: Candidate, *, head: Release) -> str:
        """Why a person has to look at a candidate before it can be released; empty where none has to."""
        harness = candidate.components.get(Component.HARNESS)
        changed = changed_paths(self.artifacts.read(head.commit), self.artifacts.read(harness.commit)) if harness else ()
        return review.why_held(candidate, changed, hold=self._hold)

    def promote(self, candidate_id: str, *, reason: str = "") -> Release:
        """Release a candidate after review: one that is held or on canary, or one that the gate could not decide on.

        Raises:
            NotFound: no such candidate.
            StaleHead: what it was judged against serves no more.
            Conflict: it is in another state, its bytes are the head's, or `reef gc` let go of them.
        """
        candidate = self.candidate(candidate_id)
        reviewed = f"promoted after review{': ' if reason else ''}{reason}"
        if candidate.state not in _PROMOTABLE:
            hint = "Only what is held or inconclusive can be."
            raise Conflict(f"candidate {candidate_id} is {candidate.state} and cannot be promoted", hint=hint)
        if candidate.dropped_at is not None:
            raise Conflict(f"the bytes of {candidate_id} are gone: `reef gc` dropped them", hint="Have it proposed again.")
        base, head = self.release(candidate.scenario, candidate.base_step), self.head(candidate.scenario)
        if _identity(base) != _identity(head):
            raise StaleHead(
                f"{candidate_id} was made for release {base.step} of {candidate.scenario}, and release {head.step} serves by now",
                hint=f"Roll back to {base.step} first, or reject it and have a new one proposed.",
            )

        def settle(tx: sa.Connection) -> None:
            statements.move(tx, candidate_id, CandidateState.RELEASED, reviewed, after=_PROMOTABLE)
            rollout.end(tx, candidate_id, {"ended_by": reviewed})

        return accept(
            self,
            candidate,
            head,
            operation="promote",
            verdict=self.verdict(candidate_id),
            message=reviewed[0].upper() + reviewed[1:],
            also=settle,
        )

    def reject(self, candidate_id: str, *, reason: str = "") -> Candidate:
        """Refuse a candidate that is held or on canary, after review.

        Raises:
            NotFound: no such candidate.
            Conflict: it is neither.
        """
        self.candidate(candidate_id)
        with writing(self.engine) as tx:
            said = f"rejected after review{': ' if reason else ''}{reason}"
            statements.move(tx, candidate_id, CandidateState.REJECTED, said, after=(CandidateState.HELD, CandidateState.CANARY))
            rollout.end(tx, candidate_id, {"ended_by": said})
        reach("candidate.settled")
        return self.candidate(candidate_id)

    def rollback(self, scenario: str, step: int, *, expected_head: int | None = None) -> Release:
        """Publish the content of an earlier release again, as a new step.

        Raises:
            NotFound: no such release.
            StaleHead: the head is not ``expected_head``, or moved meanwhile.
            Conflict: that content is what serves now.
        """
        target = self.release(scenario, step)
        head = self.expect_head(scenario, expected_head)
        if _identity(target) == _identity(head):
            raise Conflict(f"release {head.step} of {scenario} already has the content of release {step}", hint="There is nothing to do.")
        commit = self.artifacts.recommit(
            target.commit,
            parents=[head.commit],
            message=f"Back to release {step}\n\n{target.summary}",
            trailers={
                "Reef-Scenario": scenario,
                "Reef-Step": head.step + 1,
                "Reef-Operation": "rollback",
                "Reef-Base": step,
                "Reef-Content-Id": tuple(_identity(target).values()),
            },
        )
        return publish(
            self,
            scenario,
            expected_head=head.step,
            content_id=target.content_id,
            commit=commit,
            operation="rollback",
            component=target.component,
            summary=f"Back to release {step}",
            others=target.others,
        )

    def consume(self, scenario: str, recipe: str, reports: Sequence[str], *, state: Mapping[str, JSON] | None = None) -> None:
        """Note reports a recipe is done with, without a candidate; those it has consumed already stay as they are.

        Args:
            state: the recipe's new state; None leaves it as it is.
        """
        with writing(self.engine) as tx:
            there = statements.consumed(tx, recipe, reports)
            statements.consume(tx, scenario, recipe, [report for report in reports if report not in there], candidate=None)
            if state is not None:
                statements.write_state(tx, scenario, recipe, state)

    def set_recipe_state(self, scenario: str, recipe: str, state: Mapping[str, JSON]) -> None:
        """Replace a recipe's state outside a settlement."""
        with writing(self.engine) as tx:
            statements.write_state(tx, scenario, recipe, state)

    def verify(self, scenario: str) -> list[str]:
        """Audit one scenario: everything that does not hold, the first break first. Empty where all is well."""
        return list(Audit(self).breaks(scenario))

    def repair(self) -> list[str]:
        """Mend what a crash left: refs behind the chain, abandoned work trees, candidates whose judge is gone. Says what was mended.

        Called by the learner when it starts, and by nobody else: it alone judges candidates, so those half-judged are its own of before.
        """
        mended = self.artifacts.prune()
        with writing(self.engine) as tx:
            open_ones = sa.select(schema.candidates.c.id).where(schema.candidates.c.state.in_(statements.UNJUDGED))
            for candidate_id in tx.execute(open_ones).scalars().all():
                statements.move(tx, candidate_id, CandidateState.ABANDONED, "The learner stopped while it was being judged.")
                mended.append(f"candidate {candidate_id} is abandoned")
        names = list(self.scenarios())
        return mended + mirror.repair(
            self.artifacts,
            chains=lambda: (self.releases(name) for name in names),
            candidates=(candidate for name in names for candidate in self.candidates(name)),
        )


def _identity(release: Release) -> dict[str, str]:
    """The content ids of all that a release is made of."""
    return {name: content.content_id for name, content in release.components.items()}
