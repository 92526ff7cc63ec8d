"""Codex (``@openai/codex``): the Responses dialect, configured by one folder, ``CODEX_HOME``."""

from __future__ import annotations

import json
import re
from typing import Any

from adapters.native import HARNESS_STATUS, events, placed, settings
from reef.errors import InvalidTree
from reef.harness.adapter import Adapter, Binding, InstallSpec, LaunchSpec, Outcome
from reef.harness.tree import RULES, instructions
from reef.types import File, Tree

_OURS = ("model", "model_provider", "model_providers", "profile", "profiles", "openai_base_url", "chatgpt_base_url", "sqlite_home")
_FLAGS_THAT_TELL = ("--version", "-V", "--help", "-h")
_COMMANDS_THAT_MANAGE = ("completion", "debug", "doctor", "features", "help", "login", "logout", "mcp", "plugin", "update")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class CodexAdapter(Adapter):
    """Codex 0.171. Transcripts and their index outlive updates, so ``codex resume`` does."""

    name = "codex"
    install = InstallSpec(package="@openai/codex", version="0.171.0", command="codex", node_min="16.0.0")

    def render(self, tree: Tree, *, binding: Binding) -> Tree:
        rendered = placed(tree, adapter=self.name, commands="prompts", extensions=("hooks", "hooks.json"))
        rules = instructions(tree)
        if rules:
            rendered[RULES] = File(rules.encode())
        own = settings(tree, adapter=self.name, ours=_OURS)
        features = own.get("features", {})
        if not isinstance(features, dict):
            raise InvalidTree("settings/codex.json: features must hold an object", hint='Example: {"features": {"goals": false}}.')
        # apps and plugins are looked up on the network at every start
        quiet = {"analytics": {"enabled": False}, "features": {**features, "apps": False, "plugins": False}}
        config = {"model_context_window": 128_000, **own, "check_for_update_on_startup": False, **quiet, **_binding(binding)}
        rendered["config.toml"] = File("".join(f"{_key(key)} = {_toml(value)}\n" for key, value in config.items()).encode())
        return rendered

    def launch(self) -> LaunchSpec:
        return LaunchSpec(
            env={"CODEX_HOME": "{config}", "CODEX_SQLITE_HOME": "{sessions}"},
            keep=("history.jsonl", "installation_id"),
            lasting=("sessions",),
            not_runs=(*_FLAGS_THAT_TELL, *_COMMANDS_THAT_MANAGE),
        )

    def headless(self, prompt: str) -> tuple[str, ...]:
        # Nobody is there to approve, and where a run must not do harm it is in a sandbox already. "-" alone would mean standard input.
        options = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        return ("exec", *options, "--", "\n-" if prompt == "-" else prompt)

    def outcome(self, *, stdout: str, stderr: str, returncode: int) -> Outcome:
        answer, problem = "", ""
        for event in events(stdout):
            item = event.get("item") or {}
            if event.get("type") == "item.completed" and item.get("type") == "agent_message":
                answer = str(item.get("text", "")).strip()
            elif event.get("type") == "turn.failed":
                problem = str((event.get("error") or {}).get("message") or "the turn failed")[:2000]
            elif event.get("type") == "error":
                problem = str(event.get("message") or "an error without a message")[:2000]
            elif event.get("type") == "turn.completed":
                problem = ""
        if problem:
            return Outcome(answer, "harness" if _caused_here(problem) else "infrastructure", problem)
        if returncode != 0 or not answer:
            return Outcome(answer, "harness", stderr.strip()[-2000:] or f"codex ended with exit code {returncode} and no answer")
        return Outcome(answer)


def _caused_here(problem: str) -> bool:
    """Of a 400 Codex shows the body, of other statuses the number, and of a full context its own words."""
    status = re.search(r"unexpected status (\d{3})", problem)
    if status:
        return int(status.group(1)) in HARNESS_STATUS
    return problem.startswith("{") or "context window" in problem


def _binding(binding: Binding) -> dict[str, Any]:
    provider = {
        "name": "Reef",
        "base_url": binding.base_url,
        "env_key": "REEF_API_KEY",
        "wire_api": "responses",
        "env_http_headers": dict(binding.headers),
        "request_max_retries": 2,
        "stream_max_retries": 2,
    }
    return {"model": binding.model, "model_provider": "reef", "model_providers": {"reef": provider}}


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _toml(key)


def _toml(value: Any) -> str:
    """A JSON value in TOML, tables inline."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if value is None:
        raise InvalidTree("settings/codex.json holds a null", hint="Codex's settings have no null; leave the key out.")
    # JSON's strings, numbers and booleans are TOML's, but for one control character that JSON may leave as it is
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
