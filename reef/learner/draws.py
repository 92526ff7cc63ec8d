"""Which sessions the choice among upstreams has drawn an arm for, and how they went: read from records, reports and the chain.

The chance of a draw is not written down anywhere: policy, session and request are, and say it. A session is left out where they do not fit
what was answered: it was asked for another model, or before the policy served. A broken answer stays in, with what was said of it: an
upstream that fails is worth less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reef.artifacts.repository import ArtifactRepository
from reef.errors import InvalidTree, NotFound
from reef.evaluation.off_policy import Draw
from reef.experience.store import ExperienceStore
from reef.serving import policy
from reef.serving.choosing import features
from reef.serving.policy import Policy
from reef.types import Component, End, Origin, Record, Release, Report

SETTLING_S = 0.5
"""After a change of policy, until every gateway has seen it: five times as long as they take."""
_FIRST = 1000
"""Reports of one session among which the first is looked for."""


class Served(NamedTuple):
    """A policy and when it served."""

    policy: Policy
    content_id: str
    since: float
    until: float


def head_policy(release: Release, artifacts: ArtifactRepository) -> Policy | None:
    """The policy of a release; None where it has none that can be used."""
    content = release.others.get(Component.ROUTING.value)
    if content is None:
        return None
    try:
        return policy.read(artifacts.read(content.commit))
    except InvalidTree:
        return None


def served(chain: Sequence[Release], artifacts: ArtifactRepository) -> list[Served]:
    """The policies with a choice of a chain, oldest first. Releases that leave the policy as it is are one with the one before."""
    found: list[Served] = []
    known = ""
    for release in chain:
        content = release.others.get(Component.ROUTING.value)
        name = content.content_id if content else ""
        if name == known:
            continue
        known = name
        if found and found[-1].until == float("inf"):
            found[-1] = found[-1]._replace(until=release.created_at)
        read = head_policy(release, artifacts)
        if read is not None and read.choose is not None:
            found.append(Served(read, name, release.created_at + SETTLING_S, float("inf")))
    return found


def draw(report: Report, *, store: ExperienceStore, policies: Iterable[Served]) -> tuple[Draw, Served] | None:
    """The draw that a report tells of; None where it is of no use."""
    if report.score is None or not report.references:
        return None
    records = store.report_records(report.id)
    if not records or (session := records[0].session) is None or not _first_word(report, session, store):
        return None
    for one in policies:
        if all(one.since <= record.started_at < one.until and _drawn(record, session, one.policy) for record in records):
            choice = one.policy.choose
            assert choice is not None
            arms = {choice.pick(session, record.request) for record in records}
            arm = arms.pop()
            if arms or any(record.model != arm.partition("/")[2] for record in records):
                return None  # another one stood in, or it was not the gateway's choice
            seen = features(records[0].request)
            prompt, completion = (sum(record.usage.get(name, 0) for record in records) for name in ("prompt_tokens", "completion_tokens"))
            return Draw(report.id, seen, arm, report.score, prompt, completion), one
    return None


def _drawn(record: Record, session: str, by: Policy) -> bool:
    """Whether a record is of a session that this policy chose for."""
    mine = record.origin is Origin.USER and record.candidate is None and record.session == session
    return mine and record.end is not End.CLIENT_GONE and isinstance(record.request, dict) and by.chooses(record.request.get("model"))


def _first_word(report: Report, session: str, store: ExperienceStore) -> bool:
    """Whether nothing was said of the session before: what is said of one session is one draw, however often it is said."""
    try:
        said = store.session_reports(report.scenario, session, limit=_FIRST)
    except NotFound:
        return False
    scored = [other.id for other in said if other.score is not None]
    return bool(scored) and scored[0] == report.id
