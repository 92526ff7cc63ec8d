"""Branches and tags that follow the chain, so that ``git log releases/<scenario>`` and ``git clone`` show it.

They are a mirror of the database, never a source: written after the commit point, and again at start where a crash came between.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable

from reef.artifacts.repository import NO_COMMIT, ArtifactRepository, full_ref
from reef.errors import Conflict, InvalidRequest
from reef.failpoints import reach
from reef.types import Candidate, Release

_SCENARIO = re.compile(r"(?!\.)[A-Za-z0-9._:-]{1,128}")
_ATTEMPTS = 10


def check_scenario_name(name: str) -> None:
    """Refuse a name that could not be part of a URL or a file name.

    Raises:
        InvalidRequest: it has other characters than letters, digits, ``.``, ``_``, ``:`` and ``-``, starts with a dot, or is too long.
    """
    if not _SCENARIO.fullmatch(name):
        raise InvalidRequest(
            f"{name[:140]!r} cannot name a scenario", hint="1 to 128 of the characters A-Z a-z 0-9 . _ : -, the first not a dot."
        )


def head_ref(scenario: str) -> str:
    """The branch that follows a scenario's head."""
    return f"refs/heads/releases/{_quote(scenario)}"


def step_ref(scenario: str, step: int) -> str:
    """The tag of one release."""
    return f"refs/tags/{_quote(scenario)}/step-{step}"


def candidate_branch(scenario: str, name: str) -> str:
    """The branch for a candidate, by convention."""
    return f"candidates/{_quote(scenario)}/{name}"


def _quote(scenario: str) -> str:
    """The scenario's name as git allows it: a colon, and a dot where git gives it a meaning, as ``%3A`` and ``%2E``."""
    quoted = scenario.replace(":", "%3A")
    return quoted.replace(".", "%2E") if ".." in quoted or quoted.endswith((".", ".lock")) else quoted


def follow(artifacts: ArtifactRepository, *, head: Callable[[], Release], published: Release) -> None:
    """Tag a new release and move the branch to the head.

    Two publishers may arrive here in the wrong order, so the head is read again after writing until it is the one that was written.
    """
    tag = {step_ref(published.scenario, published.step): published.commit}  # in one git command with the branch
    written = None
    while written != (latest := head()):
        artifacts.set_refs({**tag, head_ref(latest.scenario): latest.commit})
        tag, written = {}, latest
        reach("release.refs")
    if published.step == 1:
        artifacts.offer_default(head_ref(published.scenario))


def repair(artifacts: ArtifactRepository, *, chains: Callable[[], Iterable[list[Release]]], candidates: Iterable[Candidate]) -> list[str]:
    """Write every ref that is missing or wrong, in one git command; say which. Branches of candidates that somebody moved stay moved.

    Others may publish meanwhile. Refs are read before the chains and moved only from where they were read, so none can go backwards.
    """
    lost = {full_ref(candidate.branch): candidate.commit for candidate in candidates if candidate.dropped_at is None}
    for _ in range(_ATTEMPTS):
        there = artifacts.refs()
        wanted = {ref: commit for ref, commit in lost.items() if ref not in there}
        for chain in chains():
            wanted.update({step_ref(release.scenario, release.step): release.commit for release in chain})
            wanted[head_ref(chain[-1].scenario)] = chain[-1].commit
        wrong = {ref: commit for ref, commit in sorted(wanted.items()) if there.get(ref) != commit}
        with contextlib.suppress(Conflict):
            if wrong:
                artifacts.set_refs(wrong, old={ref: there.get(ref, NO_COMMIT) for ref in wrong})
            return [f"{ref} now points at {commit[:12]}" for ref, commit in wrong.items()]
    raise Conflict("the refs keep moving while they are repaired", hint="They follow the chain again at the next start.")
