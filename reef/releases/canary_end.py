"""The end of a canary, in one transaction like any other end of a candidate."""

from __future__ import annotations

import dataclasses

import sqlalchemy as sa

from reef.failpoints import reach
from reef.releases import rollout, statements
from reef.releases.accepting import STATE_AFTER, accept
from reef.releases.publishing import writing
from reef.releases.store import ReleaseStore
from reef.types import CandidateState, Release, Verdict


def conclude(store: ReleaseStore, candidate_id: str, found: Verdict) -> Release | None:
    """Bring a canary to its end: one that survived is released, with compare-and-swap as any other.

    Args:
        found: what the reports on it say.

    Returns:
        The new release; None where there is none.

    Raises:
        NotFound: no such candidate.
        StaleHead: it survived, and what it was compared with serves no more.
        Conflict: it is not on canary any more.
    """
    candidate, state_after = store.candidate(candidate_id), STATE_AFTER[found.decision]

    def settle(tx: sa.Connection) -> None:
        statements.move(tx, candidate_id, state_after, f"canary: {found.reason}", after=(CandidateState.CANARY,))
        rollout.end(tx, candidate_id, dataclasses.asdict(found))

    if state_after is not CandidateState.RELEASED:
        with writing(store.engine) as tx:
            settle(tx)
        reach("candidate.settled")
        return None
    head = store.expect_head(candidate.scenario, candidate.base_step)
    said = f"Survived its canary: {found.reason}"
    return accept(store, candidate, head, operation="train", verdict=store.verdict(candidate_id), message=said, also=settle)
