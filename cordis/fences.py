"""Prompts from templates, with everything that was not written by us behind fences.

A fence is a pair of tags that carry a random nonce, made anew for each prompt. Who wrote the text inside cannot have known it, so no text
can close its fence and go on as if it were instructions. Templates are files of this package, never anybody else's, and run sandboxed.
"""

from __future__ import annotations

import secrets
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Prompt:
    """One conversation's templates: all messages rendered by an instance share its nonce."""

    def __init__(self) -> None:
        self.nonce = secrets.token_hex(16)
        self._environment = ImmutableSandboxedEnvironment(
            loader=jinja2.PackageLoader("cordis", "prompts"),
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # prompts are not HTML: the fences do what escaping would
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters["fence"] = self.fence

    def render(self, template: str, **values: Any) -> str:
        """Fill in a template of ``cordis/prompts``."""
        return self._environment.get_template(template).render(**values, nonce=self.nonce).strip() + "\n"

    def fence(self, text: object, kind: str) -> str:
        """``text`` between tags that it cannot contain."""
        sendable = str(text).encode("utf-8", "replace").decode()  # half of a surrogate pair can be in what an agent cut off
        inside = sendable.replace(self.nonce, "…").strip("\n")
        return f"<{kind}-{self.nonce}>\n{inside}\n</{kind}-{self.nonce}>"
