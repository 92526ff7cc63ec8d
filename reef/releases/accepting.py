"""From a candidate to the release it becomes: its commit, on top of the head and of all that it changes, and the commit point."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from reef.errors import Conflict
from reef.releases import statements
from reef.releases.publishing import publish
from reef.releases.store import ReleaseStore
from reef.types import Candidate, CandidateState, Component, Decision, Release, Verdict

STATE_AFTER = {
    Decision.PROMOTE: CandidateState.RELEASED,
    Decision.REJECT: CandidateState.REJECTED,
    Decision.INCONCLUSIVE: CandidateState.INCONCLUSIVE,
    Decision.NO_CHANGE: CandidateState.INCONCLUSIVE,
}
MAX_RECEIPTS = 100
"""As many of those that caused a release are named in its commit."""


def accept(
    store: ReleaseStore,
    candidate: Candidate,
    head: Release,
    *,
    operation: str,
    verdict: Verdict | None,
    message: str,
    also: Callable[[sa.Connection], None],
) -> Release:
    """Publish a candidate on top of ``head``: what it changes from it, the rest from the head.

    Args:
        also: writes what else belongs to the transaction; the candidate's own end, first of all.

    Raises:
        StaleHead: another release was published meanwhile; nothing was changed.
        Conflict: its bytes are the head's.
    """
    changed, before = candidate.components, head.components
    if all(name in before and before[name].content_id == content.content_id for name, content in changed.items()):
        raise Conflict(f"candidate {candidate.id} is the same as release {head.step}: no change", hint="Settle it as inconclusive.")
    after = {**before, **changed}
    harness = after.pop(Component.HARNESS.value)
    said = f"{verdict.decision} {verdict.effect:+.3f} in {verdict.pairs} pairs" if verdict else "none"
    with store.engine.connect() as connection:
        receipts = statements.receipts(connection, candidate.reports, limit=MAX_RECEIPTS)
    commit = store.artifacts.recommit(
        harness.commit,
        parents=[head.commit, *(content.commit for content in changed.values())],
        message=f"{candidate.summary}\n\n{message}",
        trailers={
            "Reef-Scenario": candidate.scenario,
            "Reef-Step": head.step + 1,
            "Reef-Operation": operation,
            "Reef-Component": tuple(changed),
            "Reef-Base": candidate.base_step,
            "Reef-Recipe": candidate.recipe,
            "Reef-Candidate": candidate.id,
            "Reef-Verdict": said,
            "Reef-Report": tuple(report for report in candidate.reports if report not in receipts),
            "Reef-Receipt": receipts,
            "Reef-Content-Id": tuple(content.content_id for content in changed.values()),
        },
    )
    return publish(
        store,
        candidate.scenario,
        expected_head=head.step,
        also=also,
        content_id=harness.content_id,
        commit=commit,
        operation=operation,
        component=candidate.component,
        recipe=candidate.recipe,
        candidate=candidate.id,
        summary=candidate.summary,
        others=after,
    )
