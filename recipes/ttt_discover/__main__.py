"""``python -m recipes.ttt_discover``: search one problem through a running gateway, or run the classical baseline beside it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich import print

from recipes.traffic import Gateway
from recipes.ttt_discover import classical
from recipes.ttt_discover.archive import Archive
from recipes.ttt_discover.problems import named
from recipes.ttt_discover.problems.circle_packing import CirclePacking
from recipes.ttt_discover.search import Progress, Search
from reef.errors import ConfigError, ReefError


def main(
    problem: Annotated[str, typer.Option(help="NAME:SIZE, e.g. circle_packing:26 or low_autocorrelation:13.")] = "low_autocorrelation:13",
    url: Annotated[str, typer.Option(help="The gateway.")] = "http://127.0.0.1:8900",
    scenario: Annotated[str, typer.Option(help="Where it is recorded.")] = "discover",
    model: Annotated[str, typer.Option(help="The model to ask for.")] = "reef",
    rounds: Annotated[int, typer.Option(min=1, help="Starts to ask from.")] = 50,
    siblings: Annotated[int, typer.Option(min=2, max=64, help="Attempts from one start.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.0, help="Bound on the search.")] = 3600.0,
    exploration: Annotated[float, typer.Option(min=0.0, help="c of PUCT.")] = 1.0,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the attempts.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of one attempt.")] = 1024,
    archive: Annotated[Path | None, typer.Option(help="File that keeps the archive, so that a search can go on.")] = None,
    classical_s: Annotated[
        float, typer.Option("--classical", min=0.0, help="Run SLSQP for so many seconds instead; circle packing only.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the classical baseline.")] = 0,
) -> None:
    """Search for one good solution, and report every attempt."""
    try:
        wanted = named(problem)
        if classical_s:
            if not isinstance(wanted, CirclePacking):
                raise ConfigError(f"there is no classical baseline of {problem}", hint="circle_packing:N has one.")
            for found in classical.improvements(wanted.size, seconds=classical_s, seed=seed):
                print(f"{float(found.value):.10f} certified after {found.starts} starts, {found.seconds:.1f} s")
            return
        gateway = Gateway(
            url=url.rstrip("/").removesuffix("/v1"),
            token=os.environ.get("REEF_TOKEN") or "none",
            scenario=scenario,
            model=model,
            temperature=temperature,
            max_tokens=max_tokens,
        )
        search = Search(
            wanted,
            gateway=gateway,
            archive=Archive(archive, exploration=exploration),
            siblings=siblings,
            name=f"{wanted.name}-{wanted.size}-{secrets.token_hex(3)}",
        )
        done = search.run(rounds=rounds, seconds=seconds, tell=_tell)
    except ReefError as error:
        print(f"[red]{error.message}[/red]\n{error.hint}")
        raise typer.Exit(1) from None
    print(done.solution or "no solution was found")


def _tell(progress: Progress) -> None:
    best = (
        "nothing" if progress.best is None else f"{float(progress.best):.8f} (attempt {progress.best_after}, {progress.best_after_s:.0f} s)"
    )
    print(f"round {progress.rounds}: {progress.attempts} attempts, {progress.refused.total()} refused, best {best}")


if __name__ == "__main__":
    typer.run(main)
