"""Commands about releases: review, import, pins, audit and gc.

Review and pins are asked of a running gateway. `import`, `audit` and `gc` work on the database and the repository themselves, beside a
`reef serve` or without one: a checkpoint goes by no network, and an audit takes nobody's word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli.options import DEFAULT_URL, Scenario, Url

if TYPE_CHECKING:  # they load SQLAlchemy
    from reef.config import Config
    from reef.releases.controller import Controller

release_app = typer.Typer(no_args_is_help=True, help="Releases made elsewhere, and who stays on which.")
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="serve.yaml")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Override a key: a.b=value. May be repeated.")]
Client = Annotated[str, typer.Option(help="One installation, as its `reef-pi status` names it; else all of them.")]
Reason = Annotated[str, typer.Option(help="Kept with the candidate.")]


def promote(candidate: str, reason: Reason = "", url: Url = DEFAULT_URL) -> None:
    """Release a candidate after review: one that is held, or that the gate could not decide on."""
    release = _review("promote", candidate, reason=reason, url=url)
    print(f"{candidate} is release {release['step']} of {release['scenario']}")


def reject(candidate: str, reason: Reason = "", url: Url = DEFAULT_URL) -> None:
    """Refuse a held candidate after review."""
    _review("reject", candidate, reason=reason, url=url)
    print(f"{candidate} is rejected")


@release_app.command("import")
def import_folder(
    folder: Path,
    scenario: Scenario = "default",
    summary: Annotated[str, typer.Option(help="One line: what it is. The folder's name by default.")] = "",
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Release what a folder holds: a harness, a checkpoint, a LoRA or a routing policy. Its weights are linked, not copied."""
    from reef.artifacts.folders import Kind, kind_of, take_in
    from reef.harness.tree import load, starter
    from reef.releases.imports import bring_in

    with _opened(config, settings) as (_, controller):
        tree = take_in(controller.artifacts, folder)
        kind = kind_of(tree)
        if kind is Kind.HARNESS:
            tree = load(folder)
        controller.ensure_scenario(scenario, starter=starter())
        release = bring_in(controller, scenario, kind.component, tree, summary=summary or f"Imported {folder.resolve().name}", kind=kind)
    print(f"{folder} is the {release.component} of release {release.step} of {scenario}: {kind}, {len(tree)} files")


@release_app.command()
def pin(step: int, scenario: Scenario = "default", client: Client = "", url: Url = DEFAULT_URL) -> None:
    """Have a client, or all of a scenario's, stay on a release, whatever the head is."""
    from reef.cli.http import call

    call(url, f"/reef/scenarios/{scenario}/pin", body={"step": step, "client": client})
    print(f"{client or f'every client of {scenario}'} stays on release {step}")


@release_app.command()
def unpin(scenario: Scenario = "default", client: Client = "", url: Url = DEFAULT_URL) -> None:
    """Have it follow the head again."""
    from reef.cli.http import call

    call(url, f"/reef/scenarios/{scenario}/pin", body={"step": None, "client": client})
    print(f"{client or f'every client of {scenario}'} follows the head")


@release_app.command()
def pins(scenario: Scenario = "default", url: Url = DEFAULT_URL) -> None:
    """List who stays on which release."""
    from reef.cli.http import call

    for entry in call(url, f"/reef/scenarios/{scenario}/pins")["pins"]:
        print(f"{entry['client'] or 'every client'}  release {entry['step']}")


def audit(
    scenario: Annotated[str | None, typer.Option("--scenario", "-s", help="Only this one.")] = None,
    sizes: Annotated[bool, typer.Option("--sizes", help="Do not read large files; compare their sizes only.")] = False,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Verify the chains: hashes, content ids, git objects and large files, refs and tags. Names the first break; exit code 1."""
    from reef.releases.audit import Audit

    with _opened(config, settings) as (_, controller):
        auditor = Audit(controller, read_large=not sizes)
        names = [scenario] if scenario else list(controller.scenarios())
        found = [problem for name in names for problem in auditor.breaks(name)]
    if found:
        print(f"first break: {found[0]}")
        if len(found) > 1:
            print(f"and {len(found) - 1} more, which may follow from it")
        raise typer.Exit(code=1)
    what = f"{auditor.releases} releases, {auditor.candidates} candidates, {len(auditor.large)} large files"
    print(f"{', '.join(names) or 'no scenario'}: all is well with {what}")


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Drop nothing; say what would go.")] = False,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Let go of what no release, candidate in its grace period or running client needs."""
    from reef.releases.gc import DAY_S, collect

    with _opened(config, settings) as (loaded, controller):
        collected = collect(controller, grace_s=loaded.release.grace_days * DAY_S, dry=dry_run)
    for candidate in collected.candidates:
        print(f"{candidate}: its bytes {'would go' if dry_run else 'are gone'}; its verdict stays")
    counts = f"{len(collected.candidates)} candidates, {len(collected.branches)} branches, {collected.large_files} large files"
    print(f"{'would drop' if dry_run else 'dropped'} the bytes of {counts} ({collected.large_bytes} bytes)")


def _review(verb: str, candidate: str, *, reason: str, url: str) -> Any:
    from reef.cli.http import call

    scenario = call(url, f"/reef/candidates/{candidate}")["scenario"]
    return call(url, f"/reef/scenarios/{scenario}/{verb}", body={"candidate": candidate, "reason": reason})


@contextlib.contextmanager
def _opened(file: Path | None, settings: list[str] | None) -> Iterator[tuple[Config, Controller]]:
    from reef import config as configuration
    from reef.artifacts.repository import ArtifactRepository
    from reef.experience import database, schema  # noqa: F401 - registers its tables
    from reef.releases.controller import Controller

    loaded = configuration.load(file, settings=settings or ())
    engine = database.connect(loaded.database_url)
    try:
        database.create_tables(engine)
        yield loaded, Controller(engine, ArtifactRepository(loaded.state_dir / "artifacts.git"), hold=loaded.release.hold)
    finally:
        engine.dispose()
