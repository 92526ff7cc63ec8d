"""`reef token …`: who may call, and for what."""

from __future__ import annotations

import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from reef.cli.options import DEFAULT_URL, Url

tokens_app = typer.Typer(no_args_is_help=True, help="Tokens with scopes. These commands need an admin's token in REEF_TOKEN.")

Name = Annotated[str, typer.Argument(help="The token's name or id.")]


@tokens_app.command("create")
def create(
    name: Annotated[str, typer.Option(help="What to call it.")],
    scope: Annotated[list[str], typer.Option(help="infer, report, read, harness or admin. May be repeated.")],
    scenario: Annotated[str | None, typer.Option(help="The only scenario it may touch.")] = None,
    expires_in_days: Annotated[float | None, typer.Option(help="Ends by itself after so long.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="In any 60 seconds, in each gateway.")] = None,
    concurrent: Annotated[int | None, typer.Option(help="Requests at the same time, in each gateway.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Issue a token and print its secret, once: it is not kept."""
    from reef.cli.http import call

    asked = {
        "name": name,
        "scopes": scope,
        "scenario": scenario,
        "expires_in_days": expires_in_days,
        "requests_per_minute": requests_per_minute,
        "concurrent": concurrent,
    }
    _print_secret(call(url, "/reef/tokens", body={key: value for key, value in asked.items() if value is not None}))


@tokens_app.command("list")
def show(url: Url = DEFAULT_URL) -> None:
    """List every token that was issued, with what it may do. No secrets: they are not kept."""
    from reef.cli.http import call
    from reef.cli.show import show_tokens

    show_tokens(call(url, "/reef/tokens"))


@tokens_app.command("revoke")
def revoke(name: Name, url: Url = DEFAULT_URL) -> None:
    """End a token, in every gateway within 100 ms."""
    from reef.cli.http import call

    token = call(url, f"/reef/tokens/{quote(name, safe='')}/revoke", body={})
    print(f"token {token['name']} is revoked")


@tokens_app.command("rotate")
def rotate(name: Name, url: Url = DEFAULT_URL) -> None:
    """Replace a token by one that may do the same, and print the new secret, once. The old one ends now."""
    from reef.cli.http import call

    _print_secret(call(url, f"/reef/tokens/{quote(name, safe='')}/rotate", body={}))


def _print_secret(issued: dict[str, Any]) -> None:
    """The secret alone on standard output, so that a script can take it; what a person should know on standard error."""
    print(issued["secret"])
    token = issued["token"]
    about = f" for {token['scenario']}" if token["scenario"] else ""
    print(f"token {token['name']} may {', '.join(token['scopes'])}{about}. It is shown this once: keep it now.", file=sys.stderr)
