"""The next step of the coding agent's model: read the skills that concern the task, do the work, say so."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping

from reef.rehearsal.competence import COMPETENCES, TOOLS_FORBIDDEN, understand_task
from reef.rehearsal.conversation import Conversation, Done
from reef.rehearsal.wire import Reply, ToolCall
from reef.rehearsal.words import key_words

_WRITERS = ("write", "write_file", "create_file", "Write")
_READERS = ("read", "read_file", "Read")
_SHELLS = ("bash", "shell", "exec_command", "run_shell_command", "Bash")
_PATHS = ("path", "file_path", "filePath", "absolute_path")

_NO_SCRIPT = (
    "This is Reef's rehearsal model, a scripted stand-in and not a language model. It has no script for this request. "
    f"It can write to a file: {', '.join(competence.name for competence in COMPETENCES)}."
)


def next_step(conversation: Conversation) -> Reply:
    """Go on with the task; the same conversation always goes on the same way."""
    tools = {} if TOOLS_FORBIDDEN.search(conversation.guidance) else conversation.tools
    if reading := _skill_to_read(conversation, tools=tools):
        return reading
    task = understand_task(conversation.prompt, guidance=conversation.guidance)
    if task is None:
        return Reply(_NO_SCRIPT)
    written = next((done for done in conversation.done if _writes(done, file=task.file)), None)
    if written is not None:
        return _report(written, file=task.file)
    call = _write_call(task.file, text=task.answer + "\n", tools=tools, folder=conversation.folder)
    if call is not None:
        return Reply(calls=(call,))
    why = "the guidance forbids it" if conversation.tools else "no tool for it was offered"
    return Reply(f"{task.answer}\n\n(Rehearsal model: {task.file} was not written, as {why}.)")


def _skill_to_read(conversation: Conversation, *, tools: Mapping[str, frozenset[str]]) -> Reply | None:
    about = set(key_words(conversation.prompt))
    for skill in conversation.skills:
        if skill.location in conversation.read or not about & set(key_words(skill.description)):
            continue
        call = _skill_call(skill.name, tools=tools)
        if call is None and skill.location.startswith("/"):
            call = _path_call(_READERS, skill.location, tools=tools) or _shell_call(f"cat {shlex.quote(skill.location)}", tools=tools)
        if call is not None:
            return Reply(calls=(call,))
    return None


def _skill_call(name: str, *, tools: Mapping[str, frozenset[str]]) -> ToolCall | None:
    for tool, parameter in (("Skill", "skill"), ("skill", "name")):
        if parameter in tools.get(tool, ()):
            return ToolCall(tool, {parameter: name})
    return None


def _write_call(file: str, *, text: str, tools: Mapping[str, frozenset[str]], folder: str) -> ToolCall | None:
    call = _path_call(_WRITERS, file, tools=tools)
    if call is not None and folder and "file_path" in call.arguments:  # agents that call it so want an absolute path
        call = ToolCall(call.name, {"file_path": posixpath.join(folder, file)})
    if call is not None and "content" in tools[call.name]:
        return ToolCall(call.name, {**call.arguments, "content": text})
    return _shell_call(f"printf %s {shlex.quote(text)} > {shlex.quote(file)}", tools=tools)


def _path_call(names: tuple[str, ...], path: str, *, tools: Mapping[str, frozenset[str]]) -> ToolCall | None:
    for name in names:
        for parameter in _PATHS:
            if parameter in tools.get(name, ()):
                return ToolCall(name, {parameter: path})
    return None


def _shell_call(command: str, *, tools: Mapping[str, frozenset[str]]) -> ToolCall | None:
    for name in _SHELLS:
        for parameter in ("command", "cmd"):
            if parameter in tools.get(name, ()):
                return ToolCall(name, {parameter: command})
    return None


def _writes(done: Done, *, file: str) -> bool:
    if done.name in _WRITERS:
        return any(value == file or str(value).endswith(f"/{file}") for key, value in done.arguments.items() if key in _PATHS)
    return done.name in _SHELLS and any(str(value).endswith(f"> {shlex.quote(file)}") for value in done.arguments.values())


def _report(written: Done, *, file: str) -> Reply:
    result = (written.result or "").strip()
    if result.lower().startswith(("error", "permission denied", "enoent", "eacces")):
        return Reply(f"{file} could not be written: {result[:200]} (rehearsal model)")
    return Reply(f"Wrote {file}. (rehearsal model)")
