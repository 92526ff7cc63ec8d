"""How things are shown to a person at a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

if TYPE_CHECKING:  # it loads SQLAlchemy
    from reef.experience.retention import Outcome

# Into a pipe or a file a line may be long: a folded receipt could not be searched for or copied.
console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 240)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _when(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M:%S")


def show_status(status: dict[str, Any]) -> None:
    """Processes first, then what they keep."""
    console.print(f"[bold]reef {escape(status['version'])}[/bold]  {escape(status.get('url', ''))}")
    processes = _table("process", "pid", "restarts", "last exit", "log")
    for name, info in status.get("processes", {}).items():
        processes.add_row(name, str(info["pid"] or "down"), str(info["restarts"]), _dash(info["last_exit"]), info["log"])
    console.print(processes)
    for name in ("upstream", "engine", "weights", "judge_engine", "learner", "canary", "retention", "counts", "writer"):
        if status.get(name):
            console.print(f"[bold]{name}[/bold]  " + "  ".join(f"{key} {escape(_dash(value))}" for key, value in status[name].items()))
    scenarios = _table("scenario", "head", "records", "hold", "may hold", "days", "dropped", "of those never learned from")
    held = status.get("held", {})
    for name, head in sorted(status.get("scenarios", {}).items()):
        its = held.get(name, {})
        lost = its.get("dropped_waiting", 0) + its.get("dropped_unreported", 0)
        scenarios.add_row(
            name,
            str(head),
            _dash(its.get("records")),
            _size(its.get("bytes")),
            _size(its.get("max_bytes")),
            _dash(its.get("max_age_days")),
            _dash(its.get("dropped")),
            _dash(lost if its else None),
        )
    console.print(scenarios)


def show_retention(outcomes: Sequence[Outcome], *, dry: bool, blobs: int) -> None:
    """What a pass dropped, or would drop."""
    if not outcomes:
        console.print("no scenario has a budget: see storage.retention in serve.yaml")
        return
    table = _table("scenario", "held", "may hold", "would go" if dry else "dropped", "records", "sessions", "unreported", "waiting")
    for outcome in outcomes:
        table.add_row(
            outcome.scenario,
            _size(outcome.bytes),
            _size(outcome.budget.max_bytes),
            _size(outcome.dropped_bytes),
            *map(str, (outcome.records, outcome.sessions, outcome.unreported, outcome.waiting)),
        )
    console.print(table)
    for outcome in outcomes:
        if outcome.over:
            console.print(f"{escape(outcome.scenario)} stays over its budget: what is left has requests younger than the grace period")
        if outcome.in_use or outcome.unreadable:
            console.print(f"{escape(outcome.scenario)}: {outcome.in_use} sessions were in use and stay, {outcome.unreadable} are damaged")
    if blobs:
        console.print(f"{blobs} blobs that nothing used any more were collected")


def show_releases(answer: dict[str, Any]) -> None:
    """The chain, newest last; the head is marked."""
    table = _table("step", "when", "operation", "recipe", "content", "candidate", "summary")
    for release in answer["releases"]:
        mark = "→ " if release["step"] == answer["head"] else "  "
        table.add_row(
            f"{mark}{release['step']}",
            _when(release["created_at"]),
            release["operation"],
            release["recipe"],
            release["content_id"][:12],
            _dash(release["candidate"]),
            escape(release["summary"]),
        )
    console.print(table)


def show_candidates(answer: dict[str, Any]) -> None:
    """Every candidate, oldest first."""
    if not answer["candidates"]:
        console.print("no candidates yet: they come from reports with a low score")
        return
    table = _table("candidate", "base", "state", "summary", "reason")
    for candidate in answer["candidates"]:
        table.add_row(
            candidate["id"], str(candidate["base_step"]), candidate["state"], escape(candidate["summary"]), escape(candidate["reason"])
        )
    console.print(table)


def show_candidate(candidate: dict[str, Any]) -> None:
    """One candidate: why, what, and the evidence."""
    console.print(
        f"[bold]{candidate['id']}[/bold]  {candidate['state']}  on release {candidate['base_step']}, branch {candidate['branch']}"
    )
    console.print(escape(candidate["summary"]))
    console.print(f"reason: {escape(candidate['reason'] or '–')}")
    console.print(f"caused by: {', '.join(candidate['reports'])}\n")
    console.print(Syntax(candidate["diff"], "diff", background_color="default"))
    verdict = candidate["verdict"]
    if verdict is None:
        console.print("never tried")
        return
    show_verdict(verdict)


def show_verdict(verdict: dict[str, Any]) -> None:
    """What the gate said, and the trials it rests on."""
    spent = f", {verdict['tokens']} tokens" + (f", {verdict['cost']:.4g} in money" if verdict["cost"] else "")
    needed = f" of {1 / verdict['alpha']:.1f} needed" if verdict["alpha"] else ""
    console.print(
        f"[bold]{verdict['decision']}[/bold] after {verdict['pairs']} pairs in {verdict['seconds']:.0f} s{spent}: "
        f"effect {verdict['effect']:+.2f} in [{verdict['low']:+.2f}, {verdict['high']:+.2f}], "
        f"{verdict['wins']} won, {verdict['losses']} lost, evidence {verdict['evidence']:.1f}{needed}"
    )
    console.print(escape(verdict["reason"]))
    if verdict["smallest_effect"] is not None:
        console.print(f"the budget would have found an effect of {verdict['smallest_effect']:.2f} with a chance of 80 %")
    elif verdict["trials"]:
        console.print("the budget was too small to find any effect with a chance of 80 %")
    table = _table("pair", "for", "task", "side", "score", "end", "detail")
    for trial in verdict["trials"]:
        stage = trial["stage"] + (" (remembered)" if trial["cached"] else "")
        table.add_row(
            str(trial["pair"]), stage, trial["task"], trial["side"], f"{trial['score']:.2f}", trial["end"], escape(trial["detail"])
        )
    console.print(table)


def show_records(answer: dict[str, Any]) -> None:
    """One line a record."""
    table = _table("receipt", "when", "session", "release", "model", "end", "tokens", "ms")
    for record in answer["records"]:
        usage = record["usage"]
        table.add_row(
            record["id"],
            _when(record["started_at"]),
            _dash(record["session"]),
            _dash(record["release"]),
            record["model"],
            record["end"],
            f"{usage.get('prompt_tokens', '–')}+{usage.get('completion_tokens', '–')}",
            f"{record['duration_ms']:.0f}",
        )
    console.print(table)


def show_sessions(sessions: Sequence[dict[str, Any]]) -> None:
    """One line a session; ends are named where they were not well."""
    if not sessions:
        console.print("no sessions yet: an agent run begins one with its first request")
        return
    table = _table("session", "last", "adapter", "release", "records", "tokens", "not complete", "reports", "score")
    for session in sessions:
        broken = (f"{count} {end}" for end, count in session["ends"].items() if end != "complete")
        table.add_row(
            session["id"],
            _when(session["last_at"]),
            _dash(session["adapter"]),
            _dash(session["release"]),
            f"{session['records']}{'' if session['whole'] else '+'}",
            f"{session['prompt_tokens']}+{session['completion_tokens']}",
            ", ".join(broken),
            str(session["reports"] or ""),
            _dash(session["score"]),
        )
    console.print(table)


def show_tokens(answer: dict[str, Any]) -> None:
    """One line a token; those that ended say how."""
    if not answer["tokens"]:
        console.print("no tokens yet: `reef token create --name NAME --scope infer` issues one")
        return
    table = _table("name", "id", "scopes", "scenario", "limits", "created", "state")
    for token in answer["tokens"]:
        limits = [f"{token[key]}{unit}" for key, unit in (("requests_per_minute", "/min"), ("concurrent", " at a time")) if token[key]]
        state = "usable" if token["usable"] else "expired"
        if token["revoked_at"]:
            state = f"revoked {_when(token['revoked_at'])}"
        elif token["expires_at"]:
            state = f"{'until' if token['usable'] else 'expired'} {_when(token['expires_at'])}"
        table.add_row(
            token["name"],
            token["id"],
            " ".join(token["scopes"]),
            token["scenario"] or "all",
            _dash(", ".join(limits)),
            _when(token["created_at"]),
            state,
        )
    console.print(table)


def _size(size: int | None) -> str:
    if size is None:
        return "–"
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"


def _dash(value: Any) -> str:
    return "–" if value is None or value == "" else str(value)
