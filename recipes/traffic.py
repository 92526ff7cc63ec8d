"""A program's side of the gateway, for the drivers of examples: ask with a session's name, get the receipt, report a score."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reef.errors import UpstreamError

REPORT_TIMEOUT_S = 30.0


class Said(NamedTuple):
    """An answer and its receipt."""

    text: str
    receipt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Where to ask and report. Safe to use from several threads."""

    url: str
    """Without ``/v1``."""
    token: str = field(default="none", repr=False)
    scenario: str
    model: str = "reef"
    temperature: float = 1.0
    max_tokens: int = 1024
    timeout_s: float = 600.0

    def ask(self, messages: Sequence[Mapping[str, str]], *, session: str, release: int | None = None, model: str = "") -> Said:
        """One question.

        Args:
            release: of the harness that asks.
            model: instead of :attr:`model`.

        Raises:
            UpstreamError: no answer.
        """
        import openai  # a second of import time

        headers = self._headers(session, release)
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.token, timeout=self.timeout_s, default_headers=headers) as client:
            try:
                raw = client.chat.completions.with_raw_response.create(
                    model=model or self.model,
                    messages=list(messages),  # type: ignore[arg-type]
                    temperature=self.temperature,
                    max_tokens=self.max_tokens,
                )
                answer = raw.parse()
            except openai.OpenAIError as error:
                raise UpstreamError(f"the gateway did not answer: {error}", hint="Is it up? See `reef status`.") from error
        text = (answer.choices[0].message.content if answer.choices else None) or ""
        return Said(text, raw.headers.get("x-reef-agent-record-id") or "")

    def report(self, receipt: str, *, score: float, metadata: Mapping[str, Any], feedback: str = "") -> None:
        """Say how an answer was.

        Raises:
            UpstreamError: the gateway does not take it.
        """
        body = {"references": [receipt], "score": score, "metadata": dict(metadata)} | ({"feedback": feedback} if feedback else {})
        self._call("/reef/report", json.dumps(body).encode())

    def harness(self) -> tuple[int, Mapping[str, str]]:
        """The step of the head and the files of its harness.

        Raises:
            UpstreamError: there is none.
        """
        manifest = self._call(f"/reef/harness?scenario={urllib.parse.quote(self.scenario)}")
        return int(manifest["step"]), dict(manifest["files"])

    def _headers(self, session: str, release: int | None) -> dict[str, str]:
        more = {} if release is None else {"x-reef-release": str(release)}
        return {"x-reef-scenario": self.scenario, "x-reef-session": session, **more}

    def _call(self, path: str, data: bytes | None = None) -> Any:
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.token}", "x-reef-scenario": self.scenario}
        request = urllib.request.Request(self.url + path, data, headers)  # noqa: S310 - the user's own address
        try:
            with urllib.request.urlopen(request, timeout=REPORT_TIMEOUT_S) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            told = error.read(500).decode(errors="replace")
            raise UpstreamError(f"the gateway refused {path}: {told}", hint="Does the recipe take scores?") from error
        except (OSError, ValueError) as error:
            raise UpstreamError(f"the gateway does not answer {path}: {error}", hint="Is it up? See `reef status`.") from error
