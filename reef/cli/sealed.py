"""`reef verdict sealed`: what two releases are worth on tasks that judged no candidate."""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from reef.cli.options import DEFAULT_URL, Url
from reef.errors import ReefError

_POLL_S = 0.5


def sealed(
    scenario: Annotated[str, typer.Argument(help="The workload.")] = "default",
    step: Annotated[int | None, typer.Option(min=1, help="The release to measure; else the head.")] = None,
    against: Annotated[int, typer.Option(min=1, help="The release to measure it against.")] = 1,
    pairs: Annotated[int | None, typer.Option(min=1, help="How many pairs of trials; else evaluation.max_pairs.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Ask for nothing; list the looks there were.")] = False,
    wait_s: Annotated[float, typer.Option(min=0, help="How long to wait for the answer; it is kept in any case.")] = 7200.0,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with all trials.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Compare two releases on the sealed tasks. Every such look is kept, and counted; nothing is released by it."""
    from reef.cli.http import call

    path = f"/reef/scenarios/{quote(scenario, safe='')}/sealed"
    if listed:
        found = call(url, path)["looks"]
        for look in found:
            print(f"{look['id']}  {_what(look)}: {_came_to(look['answer'])}")
        if not found:
            print(f"nobody looked at the sealed tasks of {scenario} yet")
        return
    look = call(url, path, body={"step": step, "against": against, "pairs": pairs})
    look = _answered(url, f"{path}/{look['id']}", wait_s=wait_s)
    if as_json:
        import json

        print(json.dumps(look, indent=2, ensure_ascii=False))
        return
    if look["answer"]["error"]:
        raise ReefError(f"nothing was measured: {look['answer']['error']}", hint="Ask again once that is mended; it is not counted.")
    _show(look)


def _answered(url: str, path: str, *, wait_s: float) -> dict[str, Any]:
    from reef.cli.http import call

    deadline = time.monotonic() + wait_s
    while True:
        look: dict[str, Any] = call(url, path)
        if look["answer"] is not None:
            return look
        if time.monotonic() >= deadline:
            raise ReefError(
                f"{look['id']} has no answer after {wait_s:g} s",
                hint=f"`reef status` says what the learner is at; `reef verdict sealed {look['scenario']} --list` shows the answer later.",
            )
        time.sleep(_POLL_S)


def _show(look: dict[str, Any]) -> None:
    verdict, count = look["answer"]["verdict"], look["answer"]["looks"]
    print(f"{_what(look)}, on the sealed tasks of {look['scenario']}")
    print(_came_to(look["answer"]))
    spent = f"{verdict['tokens']} tokens" + (f", {verdict['cost']:.4g} in money" if verdict["cost"] else "")
    print(f"{verdict['pairs']} pairs in {verdict['seconds']:.0f} s, {spent}; kept as {look['id']}; no head moved")
    before = "the first look" if count == 1 else f"look number {count}"
    print(f"This was {before} at sealed tasks in this deployment. What is chosen by looking at them, they no longer measure.")


def _what(look: dict[str, Any]) -> str:
    return f"release {look['step']} against {look['against']}"


def _came_to(answer: dict[str, Any] | None) -> str:
    if answer is None:
        return "waits for the learner"
    if answer["error"]:
        return f"nothing was measured: {answer['error']}"
    verdict = answer["verdict"]
    alike = verdict["pairs"] - verdict["wins"] - verdict["losses"]
    interval = f"between {verdict['low']:+.2f} and {verdict['high']:+.2f} with 90 % confidence"
    return f"effect {verdict['effect']:+.2f}, {interval}: {verdict['wins']} won, {verdict['losses']} lost, {alike} alike"
