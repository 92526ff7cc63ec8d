"""The competence table: what the model can do, what it gets wrong by default, and which guidance puts it right."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

Answer = Callable[[re.Match[str]], str]
"""What is written for a prompt that matched; an empty text where the prompt makes no sense after all."""


@dataclass(frozen=True, slots=True)
class Competence:
    """One kind of task."""

    name: str
    pattern: re.Pattern[str]
    """Matched on the prompt, without the file it names."""
    right: Answer
    wrong: Answer
    trigger: re.Pattern[str] | None = None
    """Guidance that makes it right; None where it is right from the start."""

    def answer(self, match: re.Match[str], *, guidance: str) -> str:
        guided = self.trigger is None or self.trigger.search(guidance)
        return self.right(match) if guided else self.wrong(match)


TOOLS_FORBIDDEN = re.compile(
    r"\b(do not|don't|never|must not|without|avoid|no)\s+(us(e|ing)|call(ing)?)\s+(of\s+)?(any\s+|the\s+)?tools?\b"
    r"(?!\s+(?:like|such\s+as|that|to)\b)"  # every agent's own prompt says what tools are not for
    r"|\b(do not|don't|never|must not)\s+(write|create|change|touch|edit)\s+(to\s+)?(any\s+|the\s+)?files?\b"
    r"|\banswer\s+(only\s+)?in\s+(the\s+)?chat(\s+only)?\b",
    re.IGNORECASE,
)
"""Guidance that is obeyed although it ruins the work: a stand-in for every rule that sounds careful and breaks things."""

_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if len(name) > 3 else name for name in _MONTHS)
_DATE = re.compile(
    rf"\bdate\b.*?(?:\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?\s+(?P<month>{_MONTH})\b\.?,?"
    rf"|\b(?P<month2>{_MONTH})\b\.?\s+(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?,?)\s+(?P<year>\d{{4}})\b",
    re.IGNORECASE | re.DOTALL,
)


def _date(match: re.Match[str], form: str) -> str:
    month = (match["month"] or match["month2"]).lower()[:3]
    number = next(index for index, name in enumerate(_MONTHS, start=1) if name.startswith(month))
    try:
        day = datetime.date(int(match["year"]), number, int(match["day"] or match["day2"]))
    except ValueError:  # 31 February: there is nothing right to write
        return ""
    return form.format(y=day.year, m=day.month, d=day.day)


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_COMMIT_TYPES = (
    ("docs", r"docs?|document\w*|readme|typos?|changelog"),
    ("fix", r"fix\w*|bugs?|crash\w*|repair\w*|correct\w*|prevent\w*"),
    ("test", r"tests?|coverage"),
    ("refactor", r"refactor\w*|renam\w*|simplif\w*|restructur\w*"),
    ("chore", r"bump\w*|upgrade\w*|dependenc\w*"),
)


def _conventional(match: re.Match[str]) -> str:
    change = _change(match)
    kind = next((kind for kind, words in _COMMIT_TYPES if re.search(rf"\b(?:{words})\b", change, re.IGNORECASE)), "feat")
    return f"{kind}: {change[:1].lower()}{change[1:]}"


def _past_tense(match: re.Match[str]) -> str:
    verb, separator, rest = _change(match).partition(" ")
    ending = "" if verb.endswith("ed") else "d" if verb.endswith("e") else "ed"
    return f"{verb.capitalize()}{ending}{separator}{rest}"


def _change(match: re.Match[str]) -> str:
    return " ".join(match["change"].split()).strip(" .\"'`")


def _sum(match: re.Match[str]) -> str:
    return str(sum(Decimal(number) for number in _NUMBER.findall(match["numbers"])))


def _upper(match: re.Match[str]) -> str:
    return match["word"].upper()


COMPETENCES = (
    Competence(
        name="commit message",
        pattern=re.compile(r"\bcommit\s+message\s+for\s*:?\s*(?P<change>.+)", re.IGNORECASE | re.DOTALL),
        right=_conventional,
        wrong=_past_tense,
        trigger=re.compile(r"\bconventional[\s-]+commits?\b|\bfeat:", re.IGNORECASE),
    ),
    Competence(
        name="date",
        pattern=_DATE,
        right=lambda match: _date(match, "{y:04d}-{m:02d}-{d:02d}"),
        wrong=lambda match: _date(match, "{m:02d}/{d:02d}/{y:04d}"),
        trigger=re.compile(r"\bYYYY-MM-DD\b|\bISO[\s-]*8601\b|\bISO[\s-]+(dates?|format|form)\b", re.IGNORECASE),
    ),
    Competence(
        name="amount of money",
        pattern=re.compile(r"\bamount\b.*?(?P<number>-?\d+(?:\.\d+)?)", re.IGNORECASE | re.DOTALL),
        right=lambda match: f"{Decimal(match['number']):,.2f}",
        wrong=lambda match: match["number"],
        trigger=re.compile(r"\btwo\s+decimals?\b|\btwo\s+decimal\s+places\b|\bthousands?\s+separators?\b", re.IGNORECASE),
    ),
    Competence(
        name="sum",
        pattern=re.compile(
            r"\bsum\s+of\s+(?P<numbers>-?\d+(?:\.\d+)?(?:(?:\s*,\s*|\s+and\s+|\s*,\s*and\s+)-?\d+(?:\.\d+)?)+)", re.IGNORECASE
        ),
        right=_sum,
        wrong=_sum,
    ),
    Competence(
        name="upper case",
        pattern=re.compile(
            r"\bword\s+[\"'`]?(?P<word>\w+)[\"'`]?\s+(?:in|to|into|as)\s+(?:upper[\s-]?case|capitals|capital\s+letters)\b", re.IGNORECASE
        ),
        right=_upper,
        wrong=_upper,
    ),
)


@dataclass(frozen=True, slots=True)
class Understood:
    """A prompt the table has an answer for."""

    competence: Competence
    answer: str
    file: str


_FILE = re.compile(
    r"\s*\b(?:to|into|in)\s+(?:the\s+|a\s+)?(?:file\s+)?(?:named\s+|called\s+)?[\"'`]?(?P<file>[\w./-]*\w\.[A-Za-z]\w*)[\"'`]?"
)
_FILE_AT_END = re.compile(r"\s*\b(?:to|into)\s+(?:the\s+)?(?:file\s+)?[\"'`]?(?P<file>[\w/-]+)[\"'`]?\s*[.!]?\s*$")


def understand_task(prompt: str, *, guidance: str) -> Understood | None:
    """What to write for a prompt, and where to; None where it is not in the table."""
    found = list(_FILE.finditer(prompt))
    file = found[-1] if found else _FILE_AT_END.search(prompt)
    if file is None:
        return None
    before = prompt[: file.start()]
    for text in (before, f"{before} {prompt[file.end() :]}"):
        for competence in COMPETENCES:
            if match := competence.pattern.search(text):
                answer = competence.answer(match, guidance=guidance)
                return Understood(competence, answer, file["file"]) if answer else None
    return None
