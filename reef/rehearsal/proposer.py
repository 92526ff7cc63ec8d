"""The proposer's part: harness edits by script, in the format the prompt of Cordis asks for.

Floors forbid importing Cordis here, and a stand-in should read what a model would read. So everything comes from the prompt: the marker
that says what is asked, the nonce of its fences, and the fenced blocks (task, feedback, file, attempt) themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import orjson

from reef.errors import ConfigError
from reef.rehearsal.conversation import Conversation
from reef.rehearsal.wire import Reply
from reef.rehearsal.words import key_words

MARKER = "reef-purpose: propose-harness-edit"
RETRY = "reef-retry:"
UNKNOWN = "(not recorded)"
ONLY_RULES = "no other file is read"
"""Said where a harness is its rules alone."""
Kind = Literal["useful", "useless", "harmful", "invalid"]
KINDS: tuple[str, ...] = get_args(Kind)

_FENCE = re.compile(r"^reef-fence: ([0-9a-f]{16,})$", re.MULTILINE)
_VALUE = re.compile(r"\S*\d[-/.,:]\d\S*")
"""Something like a date, an amount or a version: a value out of one task, not part of a rule."""


@dataclass(frozen=True, slots=True)
class _Block:
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class _Lesson:
    """What one run taught: what it was about, and what its user said."""

    about: tuple[str, ...]
    feedback: str


def check_script(proposals: Sequence[str]) -> None:
    """Refuse a script that cannot be played.

    Raises:
        ConfigError: it is empty or names a kind that does not exist.
    """
    unknown = [kind for kind in proposals if kind not in KINDS]
    if unknown or not proposals:
        problem = f"does not know {unknown[0]!r}" if unknown else "is empty"
        raise ConfigError(f"rehearsal.proposals {problem}", hint=f"Choose from {', '.join(KINDS)}; the last one is repeated.")


def is_asked(conversation: Conversation) -> bool:
    """Whether this request wants a harness edit."""
    return MARKER in conversation.system


def propose(conversation: Conversation, *, script: Sequence[str]) -> Reply:
    """Answer as the script says for this attempt."""
    blocks = _blocks(conversation)
    attempt = sum(block.kind == "attempt" for block in blocks)
    kind = script[min(attempt, len(script) - 1)]
    if kind == "invalid" and not any(role == "user" and text.startswith(RETRY) for role, text in conversation.turns):
        return Reply('{"summary": "An answer that breaks off (rehearsal model)", "edits": [{"path": "AGENTS.md", "action":')
    if kind == "harmful":
        rule = "To keep the user's files safe, do not use tools: answer in the chat only, and let the user copy the result."
        return _answer("Keep the user's files safe", edits=[_append("AGENTS.md", f"- {rule}\n")])
    if kind == "useless":
        return _answer("A calmer tone", edits=[_append("AGENTS.md", "- Prefer a calm and friendly tone in the last sentence.\n")])
    return _useful(blocks, only_rules=ONLY_RULES in conversation.system)


def _useful(blocks: Sequence[_Block], *, only_rules: bool) -> Reply:
    """Turn what the users said into guidance.

    Feedback on a run becomes a skill described by the run's key words, so that it is read for the next task of its kind; feedback
    whose run says nothing of itself becomes a rule for every task, and so does all of it where nothing but rules is read.
    """
    present = {block.text.partition("\n")[0].removeprefix("path: "): block.text for block in blocks if block.kind == "file"}
    skills: dict[str, list[str]] = {}
    rules: list[str] = []
    for lesson in _lessons(blocks):
        into = skills.setdefault(lesson.about[0], []) if lesson.about and not only_rules else rules
        into += [sentence for sentence in _sentences(lesson.feedback) if sentence not in into]
    edits = []
    for subject, sentences in skills.items():
        path = f"skills/{subject}-conventions/SKILL.md"
        bullets = "".join(f"- {sentence}\n" for sentence in sentences if sentence not in present.get(path, ""))
        if path in present:
            edits.append(_append(path, bullets))
            continue
        head = f"---\nname: {subject}-conventions\ndescription: Read this before any task that has to do with {subject}s.\n---\n\n"
        edits.append({"path": path, "action": "write", "content": f"{head}# What users asked for\n\n{bullets}"})
    if rules:
        edits.append(_append("AGENTS.md", "".join(f"- {rule}\n" for rule in rules)))
    said = [*(sentence for sentences in skills.values() for sentence in sentences), *rules]
    return _answer(f"From feedback: {said[0] if said else 'nothing was said'}", edits=edits)


def _lessons(blocks: Sequence[_Block]) -> list[_Lesson]:
    """Feedback follows the task it is about."""
    lessons: list[_Lesson] = []
    about: tuple[str, ...] = ()
    for block in blocks:
        if block.kind == "task":
            about = () if block.text == UNKNOWN else tuple(key_words(block.text))
        elif block.kind == "feedback":
            lessons.append(_Lesson(about, block.text))
    return lessons


def _sentences(feedback: str) -> list[str]:
    """The general part of what was said: a rule that quotes one task's values would be learned by heart, not understood."""
    sentences = [" ".join(sentence.split()) for sentence in re.split(r"(?<=[.!?])\s+|\n+", feedback) if sentence.strip()]
    general = [sentence for sentence in sentences if not _VALUE.search(sentence)]
    return general or [_VALUE.sub("…", sentence) for sentence in sentences]


def _blocks(conversation: Conversation) -> list[_Block]:
    """Fenced blocks of the prompt; only those with the nonce that the system message names."""
    fence = _FENCE.search(conversation.system)
    if fence is None:
        return []
    pattern = re.compile(rf"<(?P<kind>[a-z]+)-{fence[1]}>\n(?P<text>.*?)\n</(?P=kind)-{fence[1]}>", re.DOTALL)
    asked = "\n".join(text for role, text in conversation.turns if role == "user")
    return [_Block(match["kind"], match["text"]) for match in pattern.finditer(asked)]


def _append(path: str, content: str) -> dict[str, str]:
    return {"path": path, "action": "append", "content": content}


def _answer(summary: str, *, edits: Sequence[dict[str, str]]) -> Reply:
    return Reply(orjson.dumps({"summary": summary[:180], "edits": edits}, option=orjson.OPT_INDENT_2).decode())
