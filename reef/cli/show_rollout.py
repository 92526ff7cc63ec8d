"""How a canary or a shadow is shown to a person at a terminal."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from reef.cli.show import _table, _when, console


def show_rollout(rollout: dict[str, Any]) -> None:
    """What is tried on whom since when, and where it stands or came to."""
    plan, ended = rollout["plan"], rollout["ended_at"]
    what = f"for {plan['share']:g}" if rollout["mode"] == "canary" else f"on {plan['sessions']} sessions"
    until = f" until {_when(ended)}" if ended else ", under way"
    console.print(f"[bold]{rollout['mode']}[/bold] {what} since {_when(rollout['started_at'])}{until}")
    finding = rollout["finding"]
    if finding is None:
        return
    for key in ("ended_by", "reason", "summary"):
        if finding.get(key):
            console.print(escape(str(finding[key])))
    if reports := (finding.get("terms") or {}).get("reports"):
        console.print(f"sessions that were reported on: {reports['candidate']} on the candidate, {reports['head']} on the head")
    show_answers(finding.get("answers") or [])


def show_answers(answers: list[dict[str, Any]]) -> None:
    """What a shadow answered, beside what was recorded."""
    if not answers:
        return
    table = _table("session", "what", "recorded", "candidate", "detail")
    for answer in answers:
        table.add_row(answer["session"], answer["what"], _short(answer["recorded"]), _short(answer["candidate"]), escape(answer["detail"]))
    console.print(table)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = " ".join(str(value if value is not None else "–").split())
    return escape(text if len(text) <= 60 else text[:57] + "…")
