"""OpenCode (``opencode-ai``): chat completions, configured by ``opencode.json`` and the folder around it."""

from __future__ import annotations

from typing import Any

from adapters.native import HARNESS_STATUS, events, json_file, placed, settings
from reef.harness.adapter import Adapter, Binding, InstallSpec, LaunchSpec, Outcome
from reef.harness.tree import RULES, instructions
from reef.types import File, Tree

_OURS = ("model", "small_model", "provider", "enabled_providers", "disabled_providers", "autoupdate", "share", "server")
_FLAGS_THAT_TELL = ("--version", "-v", "--help", "-h")
_COMMANDS_THAT_MANAGE = ("agent", "auth", "completion", "db", "debug", "export", "import", "mcp", "models", "plugin", "providers")
_MORE_THAT_MANAGE = ("session", "stats", "uninstall", "upgrade")


class OpenCodeAdapter(Adapter):
    """OpenCode 1.x. Its database is in ``{sessions}``, so ``--continue`` works across updates of the harness."""

    name = "opencode"
    install = InstallSpec(
        package="opencode-ai",
        version="1.18.33",
        command="opencode",
        node_min="16.0.0",
        binaries={  # "baseline": runs on processors without AVX2, too
            "linux-x64": "opencode-linux-x64-baseline/bin/opencode",
            "linux-arm64": "opencode-linux-arm64/bin/opencode",
            "darwin-x64": "opencode-darwin-x64-baseline/bin/opencode",
            "darwin-arm64": "opencode-darwin-arm64/bin/opencode",
        },
        # its tools grep, glob and skill call for ripgrep, and would fetch it from GitHub
        packages=("@vscode/ripgrep@1.18.0",),
        helpers={"rg": {name: f"@vscode/ripgrep-{name}/bin/rg" for name in ("linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64")}},
    )

    def render(self, tree: Tree, *, binding: Binding) -> Tree:
        rendered = placed(tree, adapter=self.name, commands="command", extensions=("agent", "plugin", "tool"))
        rules = instructions(tree)
        if rules:
            rendered[RULES] = File(rules.encode())
        own = settings(tree, adapter=self.name, ours=_OURS)
        rendered["opencode.json"] = json_file({**own, **_binding(binding)})
        return rendered

    def launch(self) -> LaunchSpec:
        return LaunchSpec(
            env={
                "OPENCODE_CONFIG": "{config}/opencode.json",
                "OPENCODE_CONFIG_DIR": "{config}",
                "XDG_CONFIG_HOME": "{config}/xdg",
                "XDG_DATA_HOME": "{sessions}/data",
                "XDG_STATE_HOME": "{sessions}/state",
                "XDG_CACHE_HOME": "{sessions}/cache",
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
                "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",  # those of ~/.claude and ~/.agents
            },
            not_runs=(*_FLAGS_THAT_TELL, *_COMMANDS_THAT_MANAGE, *_MORE_THAT_MANAGE),
        )

    def headless(self, prompt: str) -> tuple[str, ...]:
        # OpenCode joins the words of its command line and puts quotes around those that hold a space. As positionals after `--`, numbers
        # stay numbers and break it; given as values of the option they are text. --title: no request to the model for one.
        words = (f"--message={_as_it_is(word)}" for word in prompt.split(" "))
        return ("run", "--format", "json", "--title", "reef", "--print-logs", "--log-level", "ERROR", *words)

    def outcome(self, *, stdout: str, stderr: str, returncode: int) -> Outcome:
        answer = ""
        for event in events(stdout):
            if event.get("type") == "text":
                answer = str(event["part"].get("text", "")).strip()
            elif event.get("type") == "error":
                return _failure(event.get("error") or {}, answer=answer)
        if returncode == 0 and answer:
            return Outcome(answer)
        said = stderr.strip().splitlines()
        detail = "\n".join(said)[-2000:] or f"opencode ended with exit code {returncode} and no answer"
        # a server's 5xx is tried again without end: what is left of such a run is its last line
        refused = bool(said) and "AI_APICallError" in said[-1]
        return Outcome(answer, "infrastructure" if refused else "harness", detail)


def _failure(error: dict[str, Any], *, answer: str) -> Outcome:
    data = error.get("data") or {}
    status = data.get("statusCode")
    detail = f"{status or error.get('name')}: {data.get('message') or 'no message'}"[:2000]
    asked_model = error.get("name") in ("APIError", "ProviderAuthError")
    return Outcome(answer, "infrastructure" if asked_model and status not in HARNESS_STATUS else "harness", detail)


def _as_it_is(word: str) -> str:
    """Its option parser takes one pair of quotes from around a value."""
    return f"{word[0]}{word}{word[0]}" if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word


def _binding(binding: Binding) -> dict[str, Any]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # bundled: nothing is fetched
        "name": "Reef",
        "options": {
            "baseURL": binding.base_url,
            "apiKey": "{env:REEF_API_KEY}",
            "headers": {header: f"{{env:{variable}}}" for header, variable in binding.headers.items()},
        },
        "models": {binding.model: {"name": binding.model, "limit": {"context": 128_000, "output": 16_384}, "tool_call": True}},
    }
    return {
        "model": f"reef/{binding.model}",
        "small_model": f"reef/{binding.model}",
        "provider": {"reef": provider},
        "enabled_providers": ["reef"],
        "autoupdate": False,
        "share": "disabled",
    }
