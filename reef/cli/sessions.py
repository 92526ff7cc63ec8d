"""`reef sessions`: agent runs, and what was said in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from reef.cli.options import DEFAULT_URL, Scenario, Url

sessions_app = typer.Typer(invoke_without_command=True, help="Agent runs: a list of the newest, or one as a conversation.")

PAGE = 200
"""Sessions that are asked for at once."""
SHOWN_CHARS, ALL_CHARS = 4_000, 1_000_000
"""Of each text, without and with `--full`."""

Json = Annotated[bool, typer.Option("--json", help="As JSON, one line for each session or part.")]


@sessions_app.callback()
def sessions(
    context: typer.Context,
    scenario: Scenario = "default",
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List the newest agent runs."""
    if context.invoked_subcommand is not None:
        return
    found = _listed(url, scenario, limit)
    if as_json:
        _print_lines(found)
        return
    from reef.cli.show import show_sessions

    show_sessions(found)


@sessions_app.command("show")
def show(
    context: typer.Context,
    session: Annotated[str, typer.Argument(help="The session's id.")],
    scenario: Annotated[str | None, typer.Option("--scenario", "-s", help="The workload.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing, and tell the reasoning.")] = False,
    unfold: Annotated[bool, typer.Option("--all", help="Tell side calls and sub-agents too.")] = False,
    as_json: Json = False,
    url: Annotated[str | None, typer.Option("--url", help="The gateway.")] = None,
) -> None:
    """Print an agent run as a conversation."""
    given = context.parent.params if context.parent is not None else {}  # both may stand before `show` as well
    scenario = scenario or given["scenario"]
    parts = _parts(url or given["url"], f"/reef/scenarios/{quote(scenario, safe='')}/sessions/{quote(session, safe='')}", full=full)
    if as_json:
        _print_lines(parts)
        return
    from reef.cli.conversation import show_conversation

    show_conversation(parts, full=full, unfold=unfold)


def _listed(url: str, scenario: str, limit: int) -> list[dict[str, Any]]:
    from reef.cli.http import call, query

    found: list[dict[str, Any]] = []
    before = None
    while True:
        asked = query(limit=min(PAGE, limit - len(found)), before=before)
        page = call(url, f"/reef/scenarios/{quote(scenario, safe='')}/sessions{asked}")
        found += page["sessions"]
        before = page["before"]
        if len(found) >= limit or before is None:
            return found


def _parts(url: str, path: str, *, full: bool) -> Iterator[dict[str, Any]]:
    """A conversation, in as many parts as it comes in."""
    from reef.cli.http import call, query

    after = None
    while True:
        part = call(url, path + query(after=after, chars=ALL_CHARS if full else SHOWN_CHARS))
        yield part
        after = part["after"]
        if after is None:
            return


def _print_lines(values: Any) -> None:
    import json

    for value in values:
        print(json.dumps(value))
