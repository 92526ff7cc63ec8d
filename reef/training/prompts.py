"""Chat messages as a model's tokens, for what a teacher reads. Nothing that was generated is ever tokenised again.

The template and the tokenizer are the model's own files; transformers renders the one and tokenizers reads the other, both without torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reef.errors import ConfigError, Unprocessable
from reef.types import JSON

_GIVEN = ("tools", "documents")
"""Parts of a request that its template reads beside the messages."""


class ChatPrompts:
    """The chat template of one model.

    Args:
        folder: the model's, in the form of Hugging Face.
        template: a file to take instead of the model's own template.

    Raises:
        ConfigError: the folder has no tokenizer or no chat template, or what reads them is not installed.
    """

    def __init__(self, folder: Path, *, template: Path | None = None) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigError(
                "teachers need transformers, which is not installed", hint="Install the extra: pip install 'reef[train]'."
            ) from error
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{folder} has no tokenizer.json", hint="It needs a fast tokenizer, as most models on Hugging Face have.")
        self._tokenizer = Tokenizer.from_file(str(file))
        self._special = _special_tokens(folder)
        self._template = _template(folder) if template is None else _read(template)

    def tokens(self, request: Mapping[str, JSON], *, messages: Sequence[JSON] | None = None) -> tuple[int, ...]:
        """The prompt of a chat request, up to where the answer begins.

        Args:
            request: as it was sent.
            messages: instead of the request's own.

        Raises:
            Unprocessable: the template refuses it.
        """
        rendered = self._rendered(request, request["messages"] if messages is None else messages, answered=False)
        return self._encoded(rendered)

    def answer(self, request: Mapping[str, JSON], told: str | Mapping[str, JSON]) -> tuple[int, ...]:
        """What follows the prompt of a chat request where the assistant answers so, up to the token that ends its turn.

        Args:
            told: a text, or a message, which may call tools.

        Raises:
            Unprocessable: the template refuses it, or shows the conversation otherwise once it is answered.
        """
        asked = self._rendered(request, request["messages"], answered=False)
        answer = {"role": "assistant", "content": told} if isinstance(told, str) else dict(told)
        whole = self._rendered(request, [*request["messages"], answer], answered=True)
        if not whole.startswith(asked):
            raise Unprocessable(
                "the chat template shows a prompt otherwise once it is answered", hint="No answer can be put behind it then."
            )
        return self._encoded(whole[len(asked) :].rstrip())

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _rendered(self, request: Mapping[str, JSON], messages: Sequence[JSON], *, answered: bool) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        told = [_plain(message) for message in messages]
        given = {name: request[name] for name in _GIVEN if request.get(name)}
        given |= request.get("chat_template_kwargs") or {}
        try:
            rendered, _ = render_jinja_template(
                conversations=[told], chat_template=self._template, add_generation_prompt=not answered, **{**self._special, **given}
            )
        except Exception as error:  # whatever a template raises: it is a program of its own
            raise Unprocessable(
                f"the chat template refuses the messages: {error}", hint="Was the request answered by another model?"
            ) from error
        return str(rendered[0])


def with_note(messages: Sequence[JSON], note: str) -> list[JSON]:
    """The same conversation with something said at the end of the last thing that the user says; in front, where no user says anything."""
    told = list(messages)
    for place in range(len(told) - 1, -1, -1):
        message = told[place]
        if isinstance(message, dict) and message.get("role") == "user":
            told[place] = {**message, "content": f"{_text(message.get('content'))}\n\n{note}"}
            return told
    return [{"role": "system", "content": note}, *told]


def _plain(message: JSON) -> JSON:
    """A message as vLLM 0.32 gives it to most templates: text in one piece, never null, and the arguments of tool calls parsed."""
    if not isinstance(message, dict):
        return message
    told = dict(message)
    if not isinstance(told.get("content"), str):
        told["content"] = _text(told.get("content"))
    if calls := told.get("tool_calls"):
        told["tool_calls"] = [{**call, "function": _parsed(call["function"])} if "function" in call else call for call in calls]
    return told


def _parsed(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    try:
        return {**function, "arguments": json.loads(arguments or "{}")} if isinstance(arguments, str | None) else function
    except ValueError:
        return function


def _text(content: JSON) -> str:
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", "")) for part in content if isinstance(part, dict) and part.get("type") in ("text", "input_text")
        )
    return "" if content is None else str(content)


def _settings(folder: Path) -> dict[str, Any]:
    try:
        told = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _special_tokens(folder: Path) -> dict[str, str]:
    """Those that a template may name, ``bos_token`` say."""
    found = {}
    for name, value in _settings(folder).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _template(folder: Path) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    told = _settings(folder).get("chat_template")
    if isinstance(told, list):  # several by name
        told = next((each.get("template") for each in told if isinstance(each, dict) and each.get("name") == "default"), None)
    if isinstance(told, str):
        return told
    raise ConfigError(f"{folder} has no chat template", hint="Take an instruct model, or put a chat_template.jinja into the folder.")


def _read(template: Path) -> str:
    try:
        return template.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the chat template {template} cannot be read: {error}", hint="Mend serving.vllm.chat_template.") from error
