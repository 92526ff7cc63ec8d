"""Pi (``@earendil-works/pi-coding-agent``): chat completions, configured by one folder, ``PI_CODING_AGENT_DIR``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from reef.errors import InvalidTree
from reef.harness.adapter import Adapter, Binding, InstallSpec, LaunchSpec, Outcome
from reef.harness.tree import RULES, instructions
from reef.types import File, Tree

_SETTINGS = "settings/pi.json"
_OURS = ("defaultProvider", "defaultModel")
"""Settings that say where requests go: Reef's to set, never a harness's."""
_FLAGS_THAT_TELL = ("--version", "-v", "--help", "-h", "--list-models", "--export")
_COMMANDS_THAT_MANAGE = ("install", "remove", "uninstall", "list", "config", "auth", "mcp")
_HARNESS_STATUS = (400, 413, 422)
"""The model server understood and refused what this harness made the agent send, too long a prompt for one."""


class PiAdapter(Adapter):
    """Pi 1.x. Sessions stay in ``{sessions}``, so ``-c`` continues across updates of the harness."""

    name = "pi"
    install = InstallSpec(package="@earendil-works/pi-coding-agent", version="1.6.0", command="pi", node_min="22.19.0")

    def render(self, tree: Tree, *, binding: Binding) -> Tree:
        rendered: dict[str, File] = {}
        rules = instructions(tree)
        if rules:
            rendered[RULES] = File(rules.encode())
        for path, file in tree.items():
            native = _native(path)
            if native:
                rendered[native] = file
        rendered["settings.json"] = _json(_settings(tree, binding))
        rendered["models.json"] = _json(_models(binding))
        return rendered

    def launch(self) -> LaunchSpec:
        return LaunchSpec(
            env={
                "PI_CODING_AGENT_DIR": "{config}",
                "PI_CODING_AGENT_SESSION_DIR": "{sessions}",
                "PI_OFFLINE": "1",  # no version check, no download of helpers at the start of the TUI: the version is pinned
                "PI_TELEMETRY": "0",
            },
            keep=("auth.json", "trust.json", "keybindings.json"),
            not_runs=(*_FLAGS_THAT_TELL, *_COMMANDS_THAT_MANAGE),
        )

    def headless(self, prompt: str) -> tuple[str, ...]:
        # JSON mode: text mode's exit code 1 does not tell a broken extension from a model that is down. After `--` only "@" is special.
        return ("--mode", "json", "--no-session", "--", f"\n{prompt}" if prompt.startswith("@") else prompt)

    def outcome(self, *, stdout: str, stderr: str, returncode: int) -> Outcome:
        last: Mapping[str, Any] | None = None
        for message in _assistant_messages(stdout):
            last = message
        if last is None or returncode != 0:
            detail = stderr.strip()[-2000:] or f"pi ended with exit code {returncode} and no answer"
            return Outcome("" if last is None else _text(last), "harness", detail)
        if last.get("stopReason") in ("error", "aborted"):
            problem = str(last.get("errorMessage") or "the model's answer broke off")[:2000]
            status = re.match(r"(\d{3})\b", problem)
            caused_here = status is not None and int(status.group(1)) in _HARNESS_STATUS
            return Outcome(_text(last), "harness" if caused_here else "infrastructure", problem)
        return Outcome(_text(last))


def _native(path: str) -> str | None:
    """Where a file of the tree goes in Pi's folder; None for what is not copied as it is."""
    first, _, rest = path.partition("/")
    if first == "skills":
        return path
    if first == "commands":
        return f"prompts/{rest}"
    if first == "extensions" and rest.startswith("pi/"):
        return f"extensions/{rest.removeprefix('pi/')}"
    return None


def _settings(tree: Tree, binding: Binding) -> dict[str, Any]:
    own = json.loads(tree[_SETTINGS].data) if _SETTINGS in tree else {}
    taken = [key for key in _OURS if key in own]
    if taken:
        raise InvalidTree(f"{_SETTINGS} sets {', '.join(taken)}", hint="Reef binds endpoint and model; remove them from the harness.")
    return {"defaultThinkingLevel": "off", **own, "defaultProvider": "reef", "defaultModel": binding.model, "enableInstallTelemetry": False}


def _models(binding: Binding) -> dict[str, Any]:
    # Pi 1.x replaces $NAME from the environment, and refuses to start a request where a name is unset or empty.
    model = {
        "id": binding.model,
        "name": binding.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": 128_000,
        "maxTokens": 16_384,
    }
    provider = {
        "baseUrl": binding.base_url,
        "api": "openai-completions",
        "apiKey": "$REEF_API_KEY",
        "headers": {header: f"${variable}" for header, variable in binding.headers.items()},
        "models": [model],
    }
    return {"providers": {"reef": provider}}


def _json(value: Mapping[str, Any]) -> File:
    return File((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def _assistant_messages(stdout: str) -> Iterator[Mapping[str, Any]]:
    for line in stdout.splitlines():
        if not line.startswith('{"type":"message_end"'):
            continue
        try:
            message = json.loads(line)["message"]
        except (ValueError, KeyError):
            continue  # the line a size bound cut through
        if message.get("role") == "assistant":
            yield message


def _text(message: Mapping[str, Any]) -> str:
    return "".join(part.get("text", "") for part in message.get("content", ()) if part.get("type") == "text").strip()
