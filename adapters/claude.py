"""Claude Code (``@anthropic-ai/claude-code``): the Messages dialect, configured by one folder, ``CLAUDE_CONFIG_DIR``."""

from __future__ import annotations

import json
import re
from typing import Any

from adapters.native import HARNESS_STATUS, events, json_file, placed, refuse, settings
from reef.errors import InvalidTree
from reef.harness.adapter import Adapter, Binding, InstallSpec, LaunchSpec, Outcome
from reef.harness.tree import instructions
from reef.types import File, Tree

_PACKAGE = "@anthropic-ai/claude-code"
_OURS = ("model", "apiKeyHelper", "forceLoginMethod", "forceLoginOrgUUID", "awsAuthRefresh", "awsCredentialExport")
_OUR_ENV = re.compile(r"ANTHROPIC_.*|CLAUDE_CODE_USE_.*|CLAUDE_CONFIG_DIR|REEF_.*|HTTPS?_PROXY|NO_PROXY", re.IGNORECASE)
_FLAGS_THAT_TELL = ("--version", "-v", "--help", "-h")
_COMMANDS_THAT_MANAGE = ("agents", "auth", "config", "doctor", "install", "mcp", "plugin", "plugins", "setup-token", "update", "upgrade")
_TRIAL_TOOLS = "Bash,Edit,NotebookEdit,Read,Skill,Write"
_TRIAL_ENV = {"CLAUDE_CODE_MAX_RETRIES": "3"}
"""By default a request is tried for minutes, a wrong token's too."""


class ClaudeAdapter(Adapter):
    """Claude Code 2.x. Transcripts outlive updates, so ``--resume`` does."""

    name = "claude"
    install = InstallSpec(
        package=_PACKAGE,
        version="2.1.332",
        command="claude",
        node_min="16.0.0",  # the package asks for 22, for a script that is not run: the command is a program of its own
        binaries={name: f"{_PACKAGE}-{name}/claude" for name in ("linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64")},
    )

    def render(self, tree: Tree, *, binding: Binding) -> Tree:
        extensions = ("agents", "hooks", "output-styles")
        rendered = placed(tree, adapter=self.name, commands="commands", extensions=extensions)
        rules = instructions(tree)
        if rules:
            rendered["CLAUDE.md"] = File(rules.encode())
        rendered["settings.json"] = json_file(_settings(tree, binding))
        return rendered

    def launch(self) -> LaunchSpec:
        return LaunchSpec(
            env={
                "CLAUDE_CONFIG_DIR": "{config}",
                "ANTHROPIC_AUTH_TOKEN": "{key}",
                "ANTHROPIC_CUSTOM_HEADERS": "{headers}",
                # what the user has set for other uses of it must not send requests or keys elsewhere
                "ANTHROPIC_API_KEY": "",
                "CLAUDE_CODE_USE_BEDROCK": "",
                "CLAUDE_CODE_USE_VERTEX": "",
                "CLAUDE_CODE_USE_FOUNDRY": "",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "DISABLE_ERROR_REPORTING": "1",
                "DISABLE_TELEMETRY": "1",
            },
            keep=(".claude.json", ".credentials.json"),
            lasting=("projects",),
            not_runs=(*_FLAGS_THAT_TELL, *_COMMANDS_THAT_MANAGE),
        )

    def headless(self, prompt: str) -> tuple[str, ...]:
        # Nobody is there to approve; skipping all permissions is refused to root, so what a task needs is allowed by name.
        options = ("--output-format", "stream-json", "--verbose", "--permission-mode", "acceptEdits", "--allowedTools", _TRIAL_TOOLS)
        more = ("--settings", json.dumps({"env": _TRIAL_ENV}))
        # a slash at the very beginning would call a command
        return ("-p", *options, *more, "--", f"\n{prompt}" if prompt.startswith("/") else prompt)

    def outcome(self, *, stdout: str, stderr: str, returncode: int) -> Outcome:
        answer, result, retrying = "", None, ""
        for event in events(stdout):
            retrying = ""
            if event.get("type") == "assistant" and not event.get("error"):
                answer = _text(event.get("message") or {}) or answer
            elif event.get("type") == "result":
                result = event
            elif event.get("subtype") == "api_retry":
                retrying = f"{event.get('error_status') or 'no connection'}: {event.get('error')}"
        if result is not None and not result.get("is_error") and returncode == 0:
            return Outcome(str(result.get("result") or answer).strip())
        if retrying:  # ended from outside while it tried again
            return Outcome(answer, "infrastructure", retrying)
        if result is not None and result.get("terminal_reason") == "api_error":
            problem = str(result.get("result") or "the model could not be asked")[:2000]
            status = re.search(r"API Error: (\d{3})\b", problem)
            caused_here = "too long" in problem or (status is not None and int(status.group(1)) in HARNESS_STATUS)
            return Outcome(answer, "harness" if caused_here else "infrastructure", problem)
        said = str((result or {}).get("result") or "") or stderr.strip()[-2000:]
        return Outcome(answer, "harness", said or f"claude ended with exit code {returncode} and no answer")


def _text(message: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in message.get("content", ()) if part.get("type") == "text").strip()


def _settings(tree: Tree, binding: Binding) -> dict[str, Any]:
    own = settings(tree, adapter="claude", ours=_OURS)
    env = own.get("env", {})
    if not isinstance(env, dict):
        raise InvalidTree("settings/claude.json: env must hold an object", hint='Example: {"env": {"BASH_DEFAULT_TIMEOUT_MS": "60000"}}.')
    refuse([f"env.{name}" for name in env if _OUR_ENV.fullmatch(name)], path="settings/claude.json")
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL")
    where = {"ANTHROPIC_BASE_URL": binding.base_url.removesuffix("/v1")}  # it adds the /v1 itself
    return {**own, "env": {**env, **where, **dict.fromkeys((*models, "CLAUDE_CODE_SUBAGENT_MODEL"), binding.model)}}
