"""Releases made without a judge, for tests that need a chain of some length."""

from __future__ import annotations

from reef.artifacts.tree import content_id
from reef.releases.controller import Controller
from reef.types import Component, Decision, Release, Tree, Verdict

GOOD = Verdict(
    Decision.PROMOTE, "for the test", effect=1.0, low=0.0, high=1.0, pairs=9, wins=9, losses=0, evidence=99.0, alpha=0.05, seconds=0.0
)


def publish(controller: Controller, tree: Tree, *, scenario: str = "default", summary: str = "a change") -> Release:
    """Release ``tree`` as the scenario's next step."""
    head = controller.head(scenario)
    commit = controller.artifacts.commit(tree, parents=[head.commit], message=summary, trailers={})
    candidate = controller.open_candidate(
        scenario=scenario,
        component=Component.HARNESS,
        recipe="test",
        base_step=head.step,
        branch=f"candidates/{scenario}/{head.step + 1}",
        commit=commit,
        content_id=content_id(tree),
        summary=summary,
        reports=(),
    )
    release = controller.settle(candidate, GOOD, expected_head=head.step)
    assert release is not None
    return release
