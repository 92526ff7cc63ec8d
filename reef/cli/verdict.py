"""`reef verdict`: what the gate said about a candidate, and the same computed again from the trials it rests on."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from reef.cli.options import DEFAULT_URL, Url
from reef.cli.sealed import sealed

verdict_app = typer.Typer(no_args_is_help=True, help="Verdicts of the gate.")
verdict_app.command("sealed")(sealed)


@verdict_app.command("show")
def show(
    candidate: Annotated[str, typer.Argument(help="The candidate it is about.")],
    recompute: Annotated[bool, typer.Option("--recompute", help="Compute it again from its trials; exit code 1 where it differs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with its terms and all trials.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Print a verdict with the trials it rests on."""
    from reef.cli.http import call
    from reef.errors import NotFound

    found = call(url, f"/reef/candidates/{quote(candidate, safe='')}")
    stored = found["verdict"]
    if stored is None:
        raise NotFound(f"{candidate} has no verdict", hint=f"It is {found['state']}: {found['reason'] or 'no reason is noted'}.")
    if recompute:
        _recompute(stored)
    elif as_json:
        import json

        print(json.dumps(stored, indent=2, ensure_ascii=False))
    else:
        from reef.cli.show import show_verdict

        show_verdict(stored)


def _recompute(stored: dict[str, Any]) -> None:
    """Say whether the trials lead to the verdict, bit for bit; leave with 1 where they do not."""
    from reef.evaluation.verdicts import first_difference, recompute, verdict_from

    verdict = verdict_from(stored)
    difference = first_difference(verdict, recompute(verdict))
    if difference:
        print(f"DIFFERENT: {difference}")
        raise typer.Exit(code=1)
    print(f"equal: {len(verdict.trials)} trials lead to {verdict.decision} again, to the last bit")
