"""Releases that were made elsewhere: an operator's word, not the gate's."""

from __future__ import annotations

from reef.artifacts.tree import content_id as content_id_of
from reef.errors import Conflict
from reef.releases.publishing import publish
from reef.releases.store import ReleaseStore
from reef.types import Component, Content, Release, Tree


def bring_in(
    store: ReleaseStore,
    scenario: str,
    component: Component,
    tree: Tree,
    *,
    summary: str,
    expected_head: int | None = None,
    kind: str = "",
) -> Release:
    """Publish what was made elsewhere as the next release: an operator's word, not the gate's.

    Args:
        tree: its files; large ones are in the repository already.
        kind: goes into the commit's trailers.

    Raises:
        StaleHead: the head is not ``expected_head``, or moved meanwhile.
        Conflict: that content is what serves now.
    """
    head = store.expect_head(scenario, expected_head)
    content_id = content_id_of(tree)
    serving = head.components.get(component)
    if serving is not None and serving.content_id == content_id:
        raise Conflict(f"release {head.step} of {scenario} has that content already", hint="There is nothing to do.")
    trailers = {"Reef-Scenario": scenario, "Reef-Step": head.step + 1, "Reef-Operation": "import", "Reef-Component": component}
    if kind:
        trailers["Reef-Kind"] = kind
    given = store.artifacts.commit(
        tree, parents=[serving.commit] if serving else [], message=summary, trailers={**trailers, "Reef-Base": head.step}
    )
    if component is Component.HARNESS:
        commit, harness_id, others = given, content_id, head.others
    else:
        commit = store.artifacts.recommit(
            head.commit, parents=[head.commit, given], message=summary, trailers={**trailers, "Reef-Content-Id": content_id}
        )
        harness_id, others = head.content_id, {**head.others, component.value: Content(content_id, given)}
    return publish(
        store, scenario, expected_head=head.step, content_id=harness_id, commit=commit, operation="import", component=component,
        summary=summary, others=others,
    )  # fmt: skip
