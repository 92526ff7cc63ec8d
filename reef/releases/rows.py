"""Between table rows and the nouns of ``reef.types``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from reef.releases import schema
from reef.types import JSON, Candidate, CandidateState, Component, Content, Decision, Release, Trial, TrialEnd, Verdict


def release_from(row: sa.RowMapping) -> Release:
    return Release(**{**row, "component": Component(row["component"]), "others": contents_from(row["others"])})


def release_values(release: Release) -> dict[str, Any]:
    return dataclasses.asdict(release)


def contents_from(stored: JSON) -> dict[str, Content]:
    """Contents by component, out of their JSON."""
    return {name: Content(**content) for name, content in sorted(stored.items())}


def candidate_from(row: sa.RowMapping) -> Candidate:
    fields = {field.name: row[field.name] for field in dataclasses.fields(Candidate)}
    typed = {
        "component": Component(row["component"]),
        "state": CandidateState(row["state"]),
        "reports": tuple(row["reports"]),
        "companions": contents_from(row["companions"]),
    }
    return Candidate(**{**fields, **typed})


def candidate_values(candidate: Candidate) -> dict[str, Any]:
    return {**dataclasses.asdict(candidate), "reports": list(candidate.reports), "state_at": candidate.created_at}


def verdict_from(row: sa.RowMapping, trials: Sequence[sa.RowMapping]) -> Verdict:
    fields = {field.name: row[field.name] for field in dataclasses.fields(Verdict) if field.name in row}
    return Verdict(**{**fields, "decision": Decision(row["decision"]), "trials": tuple(trial_from(trial) for trial in trials)})


def write_verdict(tx: sa.Connection, candidate: str, verdict: Verdict) -> None:
    """Insert a verdict with its trials."""
    fields = dataclasses.asdict(verdict)
    trials = fields.pop("trials")
    tx.execute(schema.verdicts.insert().values(candidate=candidate, **fields))
    if trials:
        rows = [{"candidate": candidate, "position": position, **trial} for position, trial in enumerate(trials)]
        tx.execute(schema.trials.insert(), rows)


def trial_from(row: sa.RowMapping) -> Trial:
    fields = {field.name: row[field.name] for field in dataclasses.fields(Trial)}
    return Trial(**{**fields, "end": TrialEnd(row["end"])})
