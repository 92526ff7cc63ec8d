"""The shapes of well-known secrets: found in harness candidates, and taken out of JSON text before it is stored.

Speed matters: every new message passes through :func:`redact`. Each shape begins with a fixed text, its *anchor*, and nearly all are
words of at least 13 letters, digits, ``_`` and ``-``. Few words of a text are that long, and only the shapes whose anchor is in one of
those are tried. `benchmarks/redaction.py` has what that costs, beside one regular expression of all shapes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_START = r"(?:(?<![A-Za-z0-9_]{anchor})|(?<=\\[nrtbf]{anchor})|(?<=\\u[0-9a-f]{{4}}{anchor}))"
"""At the start of a word; in JSON text the last letter of an escape such as ``\\n`` is no letter of the word."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How one kind of secret looks."""

    kind: str
    """What stands in its place: ``[redacted:<kind>]``."""
    description: str
    anchor: bytes
    pattern: re.Pattern[bytes]


def _shape(kind: str, description: str, anchor: str, rest: str, *, start: str = _START) -> Shape:
    """A shape whose pattern starts with its anchor: ``re`` then looks for plain bytes before it tries anything else."""
    literal = re.escape(anchor)
    return Shape(kind, description, anchor.encode(), re.compile((literal + start.format(anchor=literal) + rest).encode()))


_KEY_LINES = r"[A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_WHOLE_KEY = rf"(?:[A-Za-z0-9+/=:,. ]|-(?!----)|\\+[nrt])*-----END {_KEY_LINES}"  # `\\+n`: a line's end, also in JSON inside JSON
_CUT_KEY = r"(?:[A-Za-z0-9+/=]|\\+[nr])*"

SHAPES = (
    _shape("api-key", "an API key (sk-…)", "sk-", r"[A-Za-z0-9_-]{16,}"),
    *(_shape("github-token", "a GitHub token", f"gh{letter}_", r"[A-Za-z0-9]{20,}") for letter in "pousr"),
    _shape("github-token", "a GitHub token", "github_pat_", r"[A-Za-z0-9_]{20,}"),
    *(_shape("aws-key", "an AWS access key", anchor, r"[A-Z0-9]{16}(?![A-Za-z0-9_])") for anchor in ("AKIA", "ASIA")),
    _shape("google-key", "a Google API key", "AIza", r"[A-Za-z0-9_-]{30,}"),
    _shape("slack-token", "a Slack token", "xox", r"[abeprs]-[A-Za-z0-9-]{10,}"),
    _shape("gitlab-token", "a GitLab token", "glpat-", r"[A-Za-z0-9_-]{16,}"),
    _shape("huggingface-token", "a Hugging Face token", "hf_", r"[A-Za-z0-9]{30,}"),
    _shape("npm-token", "an npm token", "npm_", r"[A-Za-z0-9]{30,}"),
    *(_shape("stripe-key", "a Stripe key", anchor, r"[A-Za-z0-9]{16,}") for anchor in ("sk_live_", "rk_live_")),
    _shape("reef-token", "a token of Reef", "reef_", r"[0-9a-f]{12}_[A-Za-z0-9_-]{20,}"),
    _shape("private-key", "a private key", "-----BEGIN ", _KEY_LINES + rf"(?:{_WHOLE_KEY}|{_CUT_KEY})", start=""),
    _shape("jwt", "a JSON web token", "eyJ", r"[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    _shape("bearer-token", "a bearer token", "earer ", r"\s*(?=[A-Za-z._~+/-]*\d)[A-Za-z0-9._~+/-]{24,}=*", start=r"(?<=[Bb]earer )"),
    _shape("password", "a password inside an address", "://", r"[^\s/:@\"\\]{1,200}:[^\s/:@\"\\]{1,200}(?=@)", start=""),
)
_KEPT = {"bearer-token": b"earer ", "password": b"://"}
"""What of a match says what it is, and stays."""


def find(line: str) -> str | None:
    """What secret a line of text holds, in words; None if none is seen."""
    text = line.encode("utf-8", "surrogatepass")
    for shape in SHAPES:
        if shape.anchor in text and shape.pattern.search(text):
            return shape.description
    return None


def redact_all(texts: Sequence[bytes]) -> list[bytes]:
    """Many texts at once, each as :func:`redact` gives it: where nothing is suspected in all of them together, one look is enough."""
    together = b"\n".join(texts)
    if len(texts) > 1 and not _anchored(together) and not _suspected(together):
        return list(texts)
    return [redact(text) for text in texts]


def redact(text: bytes) -> bytes:
    """JSON text with ``[redacted:<kind>]`` in the place of each secret seen in it. It is the same JSON text otherwise, and valid."""
    for shape in _anchored(text):
        text = _replaced(text, shape)
    for shape in _suspected(text):
        text = _replaced(text, shape)
    return text


def _replaced(text: bytes, shape: Shape) -> bytes:
    return shape.pattern.sub(_KEPT.get(shape.kind, b"") + b"[redacted:%b]" % shape.kind.encode(), text)


def _anchored(text: bytes) -> list[Shape]:
    """The shapes of more than a word whose anchor is there. A password in an address stands before an @, which is found in no time."""
    return [shape for shape in _ANYWHERE if (shape.kind != "password" or b"@" in text) and shape.anchor in text]


def _suspected(text: bytes) -> list[Shape]:
    """The shapes whose anchor is in a long word; all of them where there are too many words to tell."""
    marked = text.translate(_MARKS)
    most = 16 + len(text) // 64
    words = []
    found = marked.find(_LONG)
    while found >= 0:
        end = marked.find(b" ", found + len(_LONG))
        end = len(text) if end < 0 else end
        words.append(text[found:end])
        if len(words) > most:  # encoded data, most likely: word by word would be the slow way
            return _IN_WORDS
        found = marked.find(_LONG, end)
    together = b" ".join(set(words))
    return [shape for shape in _IN_WORDS if shape.anchor in together] if words else []


_LONG = b"a" * 13
"""The shortest word a shape can have: a part of a JSON web token."""
_MARKS = bytes(ord("a") if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_-") else ord(" ") for byte in range(256))
_ANYWHERE = [shape for shape in SHAPES if shape.kind in ("bearer-token", "private-key", "password")]
_IN_WORDS = [shape for shape in SHAPES if shape not in _ANYWHERE]
