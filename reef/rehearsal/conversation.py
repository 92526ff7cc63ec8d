"""A request, read as a conversation: the task, the guidance around it, the tools on offer and what was already done."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from reef.types import JSON


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: str
    text: str = ""


class _Function(BaseModel):
    name: str
    arguments: str = ""


class _Call(BaseModel):
    id: str
    type: str = "function"
    function: _Function


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class _ToolFunction(BaseModel):
    name: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class _Tool(BaseModel):
    type: Literal["function"]
    function: _ToolFunction


class _StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """The part of a chat completion request that is understood here; the rest is ignored, as a real server ignores what it lacks."""

    model: str = ""
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: JSON = None
    n: Literal[1] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that is announced, its body read only when needed."""

    name: str
    description: str
    location: str
    """Its file; its name where the agent tells no file."""


@dataclass(frozen=True, slots=True)
class Done:
    """A tool call made since the last user message, and its result; None while it is not known."""

    name: str
    arguments: Mapping[str, JSON]
    result: str | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the model knows when it is asked to go on."""

    system: str
    prompt: str
    """Text of the last user message."""
    guidance: str
    """System text, and the bodies of the skills read or handed over."""
    skills: tuple[Skill, ...]
    read: frozenset[str]
    """Locations already asked for, whatever came of it."""
    done: tuple[Done, ...]
    tools: Mapping[str, frozenset[str]]
    """Tools on offer: their parameter names by their name. Empty where the request forbids calls."""
    turns: tuple[tuple[str, str], ...]
    """Role and text of every message."""
    folder: str = ""
    """Where the agent works, as far as it says so."""


_SKILL = re.compile(
    r"<skill>\s*<name>(?P<name>.*?)</name>\s*<description>(?P<description>.*?)</description>\s*<location>(?P<location>.*?)</location>",
    re.DOTALL,
)
_SKILL_LINE = re.compile(r"^- (?P<name>[a-z0-9][a-z0-9-]*): (?P<description>.*?)(?: \(file: (?P<location>[^)\n]*)\))?$", re.MULTILINE)
"""How Codex lists a skill, with its file, and Claude Code, without."""
_SKILL_LISTS = re.compile(r"^(?:The following skills are available|#+ Available skills).*?(?=^#|\Z)", re.MULTILINE | re.DOTALL)
_SKILL_ROOT = re.compile(r"^- `(?P<short>r\d+)` = `(?P<root>[^`\n]+)`$", re.MULTILINE)
_SKILL_TOOLS = ("skill", "Skill")
_HANDED_OVER = re.compile(r"<skill\s[^>]*>(?P<body>.*?)</skill>", re.DOTALL)
_INJECTED = re.compile(
    r"<(?P<tag>system-reminder|environment_context|user_instructions)>.*?</(?P=tag)>"
    r"|\A# AGENTS\.md instructions.*?(?:</INSTRUCTIONS>|\Z)"
    r"|\ABase directory for this skill:.*",
    re.DOTALL,
)
"""What an agent itself says in the user's place: rules, its surroundings, the body of a skill that was called for."""
_FOLDER = re.compile(r"(?:[Ww]orking directory: |<cwd>)(?P<folder>/[^\n<]*)")


def understand(request: ChatRequest) -> Conversation:
    """Read a request the way a model would."""
    messages = request.messages
    system = "\n\n".join(message.text for message in messages if message.role in ("system", "developer"))
    injected = "\n\n".join(text for message in messages if message.role == "user" for text in _split(message)[1])
    given = f"{system}\n\n{injected}"
    skills = _skills(given)
    said = {index: spoken for index, message in enumerate(messages) if message.role == "user" and (spoken := _split(message)[0])}
    last_user = max(said, default=-1)
    by_name = {skill.name: skill.location for skill in skills}
    read = [done for done in _done(messages) if _is_skill(_location(done, skills=by_name), known=by_name.values())]
    handed_over = [match["body"] for spoken in said.values() for match in _HANDED_OVER.finditer(spoken)]
    offered = [] if request.tool_choice == "none" else request.tools or []
    folder = _FOLDER.search(given)
    return Conversation(
        system=system,
        prompt=_HANDED_OVER.sub("", said.get(last_user, "")).strip(),
        guidance="\n\n".join([given, *handed_over, *(done.result or "" for done in read)]),
        skills=skills,
        read=frozenset(_location(done, skills=by_name) for done in read),
        done=tuple(_done(messages[last_user + 1 :])),
        tools={tool.function.name: frozenset(tool.function.parameters.get("properties", {})) for tool in offered},
        turns=tuple((message.role, message.text) for message in messages),
        folder=folder["folder"].strip() if folder else "",
    )


def _split(message: _Message) -> tuple[str, list[str]]:
    """What the user said in a message, and what the agent put beside it."""
    parts = [part.text for part in message.content] if isinstance(message.content, list) else [message.content or ""]
    injected = [match[0] for part in parts for match in _INJECTED.finditer(part)]
    return "\n".join(spoken for part in parts if (spoken := _INJECTED.sub("", part).strip())), injected


def _skills(text: str) -> tuple[Skill, ...]:
    lines = [match for listing in _SKILL_LISTS.finditer(text) for match in _SKILL_LINE.finditer(listing[0])]
    roots = {match["short"]: match["root"] for match in _SKILL_ROOT.finditer(text)}
    return tuple(_skill(match, roots=roots) for match in [*_SKILL.finditer(text), *lines])


def _skill(match: re.Match[str], *, roots: Mapping[str, str]) -> Skill:
    said = {key: html.unescape((value or "").strip()) for key, value in match.groupdict().items()}
    short, _, rest = said["location"].partition("/")
    location = f"{roots[short]}/{rest}" if short in roots else said["location"] or said["name"]
    return Skill(said["name"], said["description"], location)


def _done(messages: list[_Message]) -> list[Done]:
    results = {message.tool_call_id: message.text for message in messages if message.role == "tool"}
    calls = [call for message in messages for call in message.tool_calls or ()]
    return [Done(call.function.name, _parsed(call.function.arguments), results.get(call.id)) for call in calls]


def _parsed(arguments: str) -> Mapping[str, JSON]:
    """A call in the history may hold anything: some agents resend broken arguments as they got them."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _is_skill(location: str, *, known: Iterable[str]) -> bool:
    return bool(location) and (location in known or location.endswith("/SKILL.md"))


def _location(done: Done, *, skills: Mapping[str, str]) -> str:
    """The file a call reads, or an empty text; for a call that names a skill, where that skill is."""
    if done.name in _SKILL_TOOLS:
        return skills.get(str(done.arguments.get("skill", done.arguments.get("name", ""))), "")
    for key in ("path", "file_path", "filePath"):
        if done.name.lower().startswith("read") and isinstance(value := done.arguments.get(key), str):
            return value
    command = done.arguments.get("command", done.arguments.get("cmd"))
    if not isinstance(command, str) or not command.startswith("cat "):
        return ""
    try:
        words = shlex.split(command)
    except ValueError:  # quotes that do not close
        return ""
    return words[1] if len(words) == 2 else ""
