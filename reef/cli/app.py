"""The commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from reef import __version__
from reef.cli.migrate import migrate
from reef.cli.model import model_app
from reef.cli.options import DEFAULT_URL, Scenario, Url
from reef.cli.releases import audit, gc, promote, reject, release_app
from reef.cli.replay import replay
from reef.cli.retention import retention
from reef.cli.sessions import sessions_app
from reef.cli.tasks import tasks_app
from reef.cli.tokens import tokens_app
from reef.cli.transfer import export_lines, import_lines
from reef.cli.verdict import verdict_app
from reef.errors import ReefError

app = typer.Typer(
    name="reef",
    no_args_is_help=True,
    add_completion=False,
    help="An inference gateway that learns: it records what your coding agents did and turns how it went into a better harness.",
)
records_app = typer.Typer(no_args_is_help=True, help="Recorded exchanges.")
app.add_typer(records_app, name="records")
app.add_typer(tokens_app, name="token")
app.add_typer(sessions_app, name="sessions")
app.add_typer(tasks_app, name="tasks")
app.add_typer(verdict_app, name="verdict")
app.add_typer(release_app, name="release")
app.add_typer(model_app, name="model")
app.command("promote")(promote)
app.command("reject")(reject)
app.command("replay")(replay)
app.command("audit")(audit)
app.command("gc")(gc)
app.command("migrate")(migrate)
app.command("retention")(retention)
app.command("import")(import_lines)
app.command("export")(export_lines)


def main() -> None:
    """Entry point: errors for people go to standard error, with their hint, and exit code 1."""
    try:
        app()
    except ReefError as error:
        print(f"reef: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"      {error.hint}", file=sys.stderr)
        sys.exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reef {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")] = False,
) -> None:
    pass


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="serve.yaml")] = None,
    upstream: Annotated[str | None, typer.Option(help="Base URL of an OpenAI-compatible server, or `rehearsal`.")] = None,
    model: Annotated[str | None, typer.Option(help="The model to ask for.")] = None,
    upstream_key_env: Annotated[str | None, typer.Option(help="Environment variable with the upstream's key.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; a non-loopback one needs a token.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 picks a free one.")] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Run a model on this machine, a small one or that of --model, fetched if need be.")
    ] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Override a key: a.b=value. May be repeated.")] = None,
) -> None:
    """Serve: the gateway, the learner and what they need, until Ctrl-C."""
    from reef import config as configuration
    from reef.serving.models.catalog import DEFAULT as DEFAULT_MODEL
    from reef.supervisor import Supervisor

    of_engine = local and upstream is None  # then --model is the engine's
    loaded = configuration.load(
        config,
        settings=settings or (),
        upstream={"url": upstream, "model": None if of_engine else model, "key_env": upstream_key_env},
        listen={"host": host, "port": port},
    )
    if local:
        loaded = configuration.with_engine(loaded, model=(model if of_engine else None) or DEFAULT_MODEL)
    Supervisor(loaded, say=lambda line: print(f"reef: {line}", flush=True)).run()


@app.command()
def doctor() -> None:
    """Say what this machine has and lacks, and the command that brings it."""
    from reef.cli.doctor import examine

    missing = False
    for finding in examine():
        mark = {"ok": "✓", "optional": "–", "missing": "✗"}[finding.state]
        print(f"{mark} {finding.what}: {finding.detail}" + (f"\n    {finding.remedy}" if finding.remedy else ""))
        missing = missing or finding.state == "missing"
    raise typer.Exit(code=1 if missing else 0)


@app.command()
def status(url: Url = DEFAULT_URL) -> None:
    """Show what runs, what it is doing and what it keeps."""
    from reef.cli.show import show_status

    show_status(_get(url, "/reef/status"))


@app.command()
def releases(scenario: Scenario = "default", url: Url = DEFAULT_URL) -> None:
    """List a scenario's chain of releases."""
    from reef.cli.show import show_releases

    show_releases(_get(url, f"/reef/scenarios/{scenario}/releases"))


@app.command()
def candidates(
    candidate: Annotated[str | None, typer.Argument(help="Show this one, with its change and its evidence.")] = None,
    scenario: Scenario = "default",
    url: Url = DEFAULT_URL,
) -> None:
    """List every candidate and what became of it, or show one."""
    from reef.cli.show import show_candidate, show_candidates

    if candidate:
        shown = _get(url, f"/reef/candidates/{candidate}")
        show_candidate(shown)
        if shown["rollout"]:
            from reef.cli.show_rollout import show_rollout

            show_rollout(shown["rollout"])
    else:
        show_candidates(_get(url, f"/reef/scenarios/{scenario}/candidates"))


@app.command()
def diff(old: int, new: int, scenario: Scenario = "default", url: Url = DEFAULT_URL) -> None:
    """Show what changed between two releases, as git does."""
    from reef.cli.http import fetch_text

    print(fetch_text(url, f"/reef/harness/diff?from={old}&to={new}", scenario=scenario), end="")


@app.command()
def rollback(step: int, scenario: Scenario = "default", url: Url = DEFAULT_URL) -> None:
    """Bring an earlier release back, as a new release with its content."""
    from reef.cli.http import call

    release = call(url, f"/reef/scenarios/{scenario}/rollback", body={"step": step})
    print(f"release {release['step']} of {scenario} has the content of release {step} again")


@records_app.command("show")
def show_record(record: str, url: Url = DEFAULT_URL) -> None:
    """Print a record: the same JSON that was sent and answered."""
    _print_json(_get(url, f"/reef/records/{record}"))


@records_app.command("list")
def list_records(
    scenario: Scenario = "default",
    session: Annotated[str | None, typer.Option(help="Only this session's.")] = None,
    candidate: Annotated[str | None, typer.Option(help="Only those made by this candidate, on canary.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    url: Url = DEFAULT_URL,
) -> None:
    """List the newest records."""
    from reef.cli.http import query
    from reef.cli.show import show_records

    show_records(_get(url, f"/reef/scenarios/{scenario}/records" + query(session=session, candidate=candidate, newest="true", limit=limit)))


def _get(url: str, path: str) -> Any:
    from reef.cli.http import call

    return call(url, path)


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))
