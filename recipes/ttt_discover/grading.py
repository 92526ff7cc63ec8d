"""The problem's own verifier as a grader, so that the gate can tell which weights write better solutions."""

from __future__ import annotations

from pathlib import Path

from recipes.ttt_discover.problems import Refused, named


def worth(_workspace: Path, answer: str, *, problem: str) -> tuple[float, str]:
    """What an answer is worth, as the grader ``python`` asks: ``{type: python, function: "recipes.ttt_discover.grading:worth", arguments:
    {problem: "golomb_ruler:55"}}``.
    """
    asked = named(problem)
    try:
        found = asked.verify(answer)
    except Refused as error:
        return 0.0, str(error)
    return asked.score(found.value), f"{float(found.value):g}"
