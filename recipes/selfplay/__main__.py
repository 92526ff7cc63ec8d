"""``python -m recipes.selfplay``: rounds of self-play through a running gateway."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich import print

from recipes.selfplay.play import Play
from recipes.traffic import Gateway
from reef.errors import ReefError


def main(
    url: Annotated[str, typer.Option(help="The gateway.")] = "http://127.0.0.1:8900",
    scenario: Annotated[str, typer.Option(help="Where it is recorded.")] = "selfplay",
    model: Annotated[str, typer.Option(help="The model that solves.")] = "reef",
    proposer: Annotated[str, typer.Option(help="The model that sets the tasks; empty: the same.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Tasks to be set.")] = 20,
    attempts: Annotated[int, typer.Option(min=2, max=64, help="Tries at each.")] = 8,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of tasks and tries.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of one answer.")] = 1024,
    plain: Annotated[bool, typer.Option("--plain", help="Ask for tasks by examples, three lines each: for a small model.")] = False,
    keep: Annotated[Path | None, typer.Option(help="File that gets the tasks that were kept.")] = None,
) -> None:
    """Set tasks, try them, report on those that are worth it."""
    gateway = Gateway(
        url=url.rstrip("/").removesuffix("/v1"),
        token=os.environ.get("REEF_TOKEN") or "none",
        scenario=scenario,
        model=model,
        temperature=temperature,
        max_tokens=max_tokens,
    )
    play = Play(gateway, proposer=proposer, attempts=attempts, name=f"selfplay-{secrets.token_hex(3)}", keep=keep, plain=plain)
    try:
        played = play.run(rounds)
    except ReefError as error:
        print(f"[red]{error.message}[/red]\n{error.hint}")
        raise typer.Exit(1) from None
    told = ", ".join(f"{count} {outcome}" for outcome, count in played.outcomes.most_common())
    print(f"{rounds} tasks: {told}; {played.attempts} attempts, {played.reports} reports")


if __name__ == "__main__":
    typer.run(main)
