"""What all processes of a service share."""

from __future__ import annotations

import os

import pytest

from reef import process


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux keeps a process on a core")
def test_a_process_stays_on_one_core_for_a_while_and_then_has_all_of_them_again() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ImportError), process.staying_put() as cores:
        assert cores == len(before)
        assert len(os.sched_getaffinity(0)) == 1
        raise ImportError
    assert os.sched_getaffinity(0) == before
