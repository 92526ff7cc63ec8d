"""`reef replay`: a recorded session answered again."""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from reef.cli.options import DEFAULT_URL, Scenario, Url
from reef.errors import ReefError

_POLL_S = 0.5


def replay(
    session: Annotated[str, typer.Argument(help="The session; `reef sessions` lists them.")],
    candidate: Annotated[str | None, typer.Option(help="Have this candidate answer it; else the head.")] = None,
    scenario: Scenario = "default",
    wait_s: Annotated[float, typer.Option(min=0, help="How long to wait for the answer.")] = 1800.0,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Have a recorded session answered again, off the serving path, and print it beside what was recorded. No head moves by it."""
    from reef.cli.http import call
    from reef.cli.show_rollout import show_answers

    path = f"/reef/scenarios/{quote(scenario, safe='')}/replays"
    asked = call(url, path, body={"session": session, "candidate": candidate})
    finding = _answered(url, f"{path}/{asked['id']}", wait_s=wait_s)
    if as_json:
        import json

        print(json.dumps(finding, indent=2, ensure_ascii=False))
        return
    print(f"{session} with {candidate or 'the head'}: {finding['summary']}")
    show_answers(finding["answers"])
    if finding["error"]:
        raise typer.Exit(code=1)


def _answered(url: str, path: str, *, wait_s: float) -> dict[str, Any]:
    from reef.cli.http import call

    deadline = time.monotonic() + wait_s
    while True:
        found: dict[str, Any] = call(url, path)
        if found["finding"] is not None:
            finding: dict[str, Any] = found["finding"]
            return finding
        if time.monotonic() >= deadline:
            raise ReefError(f"{found['id']} has no answer after {wait_s:g} s", hint="`reef status` says what the learner is at.")
        time.sleep(_POLL_S)
