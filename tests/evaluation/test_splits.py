from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.config import SplitsConfig, load
from reef.errors import ConfigError
from reef.evaluation.splits import HELDOUT, SEALED, SEARCH, assign, of, split_of
from reef.types import Task

SHARES = SplitsConfig(heldout=0.3, sealed=0.1)
names = st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=30)


def a_task(name: str, *, group: str = "", split: str = "") -> Task:
    return Task(id=name, prompt="p", grader="exact", group=group, split=split)


@given(before=names, added=names)
def test_adding_tasks_moves_none(before: list[str], added: list[str]) -> None:
    old = {task.id: task.split for task in assign(map(a_task, before), shares=SHARES)}
    both = {task.id: task.split for task in assign(map(a_task, [*added, *before]), shares=SHARES)}
    assert {name: both[name] for name in old} == old


@given(ids=st.lists(st.integers(), unique=True, min_size=1), group=st.text(min_size=1, max_size=10))
def test_related_tasks_stay_together(ids: list[int], group: str) -> None:
    tasks = assign((a_task(str(number), group=group) for number in ids), shares=SHARES)
    assert len({task.split for task in tasks}) == 1


@given(group=st.text(max_size=20), heldout=st.floats(0, 0.6), more=st.floats(0, 0.3), sealed=st.floats(0, 0.09))
def test_a_change_of_a_share_moves_tasks_only_between_it_and_search(group: str, heldout: float, more: float, sealed: float) -> None:
    before = split_of(group, shares=SplitsConfig(heldout=heldout, sealed=sealed))
    after = split_of(group, shares=SplitsConfig(heldout=heldout + more, sealed=sealed))
    assert after == before or (before, after) == (SEARCH, HELDOUT)


def test_the_shares_are_met_on_many_groups_and_splits_are_the_same_for_ever() -> None:
    found = [split_of(f"task-{number}", shares=SHARES) for number in range(5000)]
    assert abs(found.count(HELDOUT) / 5000 - 0.3) < 0.03
    assert abs(found.count(SEALED) / 5000 - 0.1) < 0.02
    # a change of the hash would move tasks that were held out into the search
    assert [number for number in range(12) if found[number] == HELDOUT] == [3]
    assert [number for number in range(12) if found[number] == SEALED] == [1, 5]


def test_without_shares_all_are_searched_with() -> None:
    assert {task.split for task in assign((a_task(str(number)) for number in range(100)), shares=SplitsConfig())} == {SEARCH}


def test_a_task_can_be_put_into_a_split_and_takes_its_group_along() -> None:
    tasks = assign((a_task("a", group="g"), a_task("b", group="g", split=SEALED), a_task("c")), shares=SplitsConfig())
    assert [task.split for task in tasks] == [SEALED, SEALED, SEARCH]
    assert [task.id for task in of(tasks, [SEARCH, HELDOUT])] == ["c"]
    with pytest.raises(ConfigError, match="task b: split: search, but a of the same group g is sealed"):
        assign((a_task("a", group="g", split=SEALED), a_task("b", group="g", split=SEARCH)), shares=SHARES)


def test_shares_must_leave_something_to_search_with() -> None:
    with pytest.raises(ConfigError, match="must leave a share for the search"):
        load(settings=["evaluation.splits={heldout: 0.6, sealed: 0.4}"])
