"""A request, read as a conversation: the task, the guidance around it, the tools on offer and what was already done."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Mapping
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
    """An entry of ``<available_skills>``: announced in the system prompt, its body read only when needed."""

    name: str
    description: str
    location: str


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


_SKILL = re.compile(
    r"<skill>\s*<name>(?P<name>.*?)</name>\s*<description>(?P<description>.*?)</description>\s*<location>(?P<location>.*?)</location>",
    re.DOTALL,
)
_HANDED_OVER = re.compile(r"<skill\s[^>]*>(?P<body>.*?)</skill>", re.DOTALL)


def understand(request: ChatRequest) -> Conversation:
    """Read a request the way a model would."""
    messages = request.messages
    system = "\n\n".join(message.text for message in messages if message.role in ("system", "developer"))
    skills = tuple(_skill(match) for match in _SKILL.finditer(system))
    last_user = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    spoken = messages[last_user].text if last_user >= 0 else ""
    locations = {skill.location for skill in skills}
    read = [done for done in _done(messages) if (location := _location(done)) and (location in locations or location.endswith("/SKILL.md"))]
    handed_over = [match["body"] for message in messages if message.role == "user" for match in _HANDED_OVER.finditer(message.text)]
    offered = [] if request.tool_choice == "none" else request.tools or []
    return Conversation(
        system=system,
        prompt=_HANDED_OVER.sub("", spoken).strip(),
        guidance="\n\n".join([system, *handed_over, *(done.result or "" for done in read)]),
        skills=skills,
        read=frozenset(_location(done) for done in read),
        done=tuple(_done(messages[last_user + 1 :])),
        tools={tool.function.name: frozenset(tool.function.parameters.get("properties", {})) for tool in offered},
        turns=tuple((message.role, message.text) for message in messages),
    )


def _skill(match: re.Match[str]) -> Skill:
    return Skill(**{key: html.unescape(value.strip()) for key, value in match.groupdict().items()})


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


def _location(done: Done) -> str:
    """The file a call reads, or an empty text."""
    for key in ("path", "file_path", "filePath"):
        if done.name.startswith("read") and isinstance(value := done.arguments.get(key), str):
            return value
    command = done.arguments.get("command", done.arguments.get("cmd"))
    if not isinstance(command, str) or not command.startswith("cat "):
        return ""
    try:
        words = shlex.split(command)
    except ValueError:  # quotes that do not close
        return ""
    return words[1] if len(words) == 2 else ""
