"""A session as a person would read it: who said what, one below the other, with the receipts at the margin."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rich.text import Text

from reef.cli.show import console
from reef.experience.telling import cut

MARGIN = 34
"""A receipt and two spaces."""
LABEL = 11
LEAST_WIDTH = 40
"""Of the text, however narrow the terminal is."""
SHORT = {"system": 300, "result": 800, "call": 800}
"""Characters that are shown of what is long and of little use as a whole."""
SNIPPET = 60
STYLES = {"user": "bold cyan", "assistant": "bold green", "call": "yellow", "system": "dim", "result": "dim", "reasoning": "dim"}


def show_conversation(parts: Iterable[dict[str, Any]], *, full: bool, unfold: bool) -> None:
    """Print a session.

    Args:
        parts: the answers of ``GET /reef/scenarios/{scenario}/sessions/{session}``, oldest first.
        full: shorten nothing.
        unfold: tell side calls and sub-agents as well.
    """
    printer = _Printer(full=full)
    reports: list[dict[str, Any]] = []
    begun = False
    for part in parts:
        if not begun:
            printer.head(part["scenario"], part["session"])
            begun = True
        _show_part(part["threads"], printer, unfold=unfold)
        reports = part["reports"]
    for report in reports:
        printer.report(report)


def _show_part(threads: list[dict[str, Any]], printer: _Printer, *, unfold: bool) -> None:
    """The exchanges of the main thread, the others as they came between them."""
    steps: list[tuple[float, dict[str, Any], dict[str, Any] | None]] = []
    for thread in threads:
        exchanges = thread["exchanges"]
        if thread["kind"] == "main":
            steps += [(exchange["started_at"], thread, exchange) for exchange in exchanges]
        else:
            steps.append((exchanges[0]["started_at"], thread, None))
    for _, thread, exchange in sorted(steps, key=lambda step: step[0]):
        if exchange is not None:
            printer.exchange(exchange)
        elif unfold:
            printer.rule(f"{thread['kind']} begins")
            for told in thread["exchanges"]:
                printer.exchange(told)
            printer.rule(f"{thread['kind']} ends")
        else:
            printer.folded(thread)


class _Printer:
    """Prints lines with a margin. At a terminal what is long is folded beside it; into a pipe a line stays a line."""

    def __init__(self, *, full: bool) -> None:
        self._full = full
        self._width = max(LEAST_WIDTH, console.width - MARGIN - LABEL - 1) if console.is_terminal else None

    def head(self, scenario: str, session: dict[str, Any]) -> None:
        about = [session["model"]]
        if session["adapter"]:
            about.insert(0, session["adapter"])
        if session["release"] is not None:
            about.append(f"release {session['release']}")
        ends = ", ".join(f"{count} {end}" for end, count in session["ends"].items())
        self._print(f"session {session['id']} of {scenario}: {', '.join(about)}", style="bold")
        self._print(f"{_when(session['first_at'])} to {_when(session['last_at'])}")
        counted = "" if session["whole"] else ", the newest ones"
        self._print(f"{session['records']} records{counted} ({ends}), {session['prompt_tokens']}+{session['completion_tokens']} tokens")
        self._print("")

    def exchange(self, exchange: dict[str, Any]) -> None:
        if exchange["rewritten"]:
            self.rule("the history was changed here")
        for said in exchange["asked"]:
            self._said(said)
        receipt = exchange["record"]
        if exchange["retry_of"]:
            self._line("retry", f"of {exchange['retry_of']}", margin=receipt, style="magenta")
            receipt = ""
        for said in exchange["answered"]:
            receipt = "" if self._said(said, margin=receipt) else receipt
        if exchange["end"] != "complete":
            self._line("ended", ": ".join(filter(None, (exchange["end"], exchange["error"]))), margin=receipt, style="bold red")
        elif receipt:
            self._line("assistant", "(nothing)", margin=receipt, style="dim")

    def folded(self, thread: dict[str, Any]) -> None:
        """A thread on one line."""
        exchanges = thread["exchanges"]
        more = "" if len(exchanges) == 1 else f"{len(exchanges)} exchanges to {exchanges[-1]['record']}: "
        asked = _snippet(said["text"] for said in exchanges[0]["asked"] if said["kind"] == "user")
        answered = _snippet(said["text"] or said["name"] for said in exchanges[-1]["answered"] if said["kind"] != "reasoning")
        broken = "" if exchanges[-1]["end"] == "complete" else f" ({exchanges[-1]['end']})"
        self._line(thread["kind"], f"{more}{asked} → {answered}{broken}", margin=exchanges[0]["record"], style="dim")

    def report(self, report: dict[str, Any]) -> None:
        score = "no score" if report["score"] is None else f"score {report['score']:g}"
        self._print("")
        self._print(f"report {report['id']} of {_when(report['created_at'])}: {score}, on {report['references']} records", style="bold")
        feedback = report["feedback"]
        if feedback is not None:
            import json

            text = feedback if isinstance(feedback, str) else json.dumps(feedback, ensure_ascii=False)
            self._print(textwrap.indent(text, "    "))

    def rule(self, text: str) -> None:
        self._print(f"{'':{MARGIN}}── {text} ──", style="magenta")

    def _said(self, said: dict[str, Any], *, margin: str = "") -> bool:
        kind, text = said["kind"], said["text"]
        if kind == "reasoning" and not self._full:
            if not margin or not said["chars"]:
                return False
            text = f"({said['chars']} characters)"
        elif not self._full and kind in SHORT:
            text = cut(text, SHORT[kind], chars=said["chars"])
        if kind == "call":
            text = f"{said['name']} {text}"
        self._line(kind, text, margin=margin, style=STYLES.get(kind, ""))
        return True

    def _line(self, label: str, text: str, *, margin: str = "", style: str = "") -> None:
        lines = [line for raw in _plain(text).split("\n") for line in self._fold(raw)]
        for place, line in enumerate(lines):
            head = Text(f"{margin if not place else '':{MARGIN}}", style="dim")
            head.append(f"{label if not place else '':{LABEL}}", style=style)
            console.print(head.append(line, style="dim" if style == "dim" else ""), soft_wrap=True)

    def _fold(self, line: str) -> list[str]:
        if self._width is None or len(line) <= self._width:
            return [line]
        return textwrap.wrap(line, self._width, drop_whitespace=False, replace_whitespace=False)

    def _print(self, line: str, *, style: str = "") -> None:
        console.print(Text(_plain(line), style=style), soft_wrap=True)


def _plain(text: str) -> str:
    """Text without what a terminal would obey: an agent's output may hold any sequence of control characters."""
    return "".join(char if char in "\n\t" or char.isprintable() else "�" for char in text.replace("\r\n", "\n"))


def _snippet(texts: Iterable[str]) -> str:
    """The beginning of a text, on one line."""
    text = " ".join(next((text for text in texts if text), "–").split())
    return text if len(text) <= SNIPPET else text[: SNIPPET - 1] + "…"


def _when(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M:%S")
