"""The model a recipe asks: the gateway itself, through the official OpenAI SDK, so that proposals are recorded like all else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reef.errors import UpstreamError

TIMEOUT_S = 300.0


class GatewayModel:
    """Implements :class:`reef.learner.recipe.Model`.

    Args:
        url: the gateway's address.
        token: the proposer token, or that of trials; it gives the records their origin.
        model: the name to ask for; empty lets the gateway choose.
        temperature: of the answers; None leaves it out, for models that take none.
    """

    def __init__(self, *, url: str, token: str, model: str, scenario: str, temperature: float | None = 0.2) -> None:
        self._url = url
        self._token = token
        self._model = model
        self._scenario = scenario
        self._temperature = temperature

    def ask(self, messages: Sequence[Mapping[str, str]], *, purpose: str, model: str = "") -> str:
        import openai  # a second of import time that a learner without work need not spend

        headers = {"x-reef-scenario": self._scenario, "x-reef-session": purpose}
        with openai.OpenAI(
            base_url=f"{self._url}/v1", api_key=self._token, timeout=TIMEOUT_S, max_retries=2, default_headers=headers
        ) as client:
            try:
                given: dict[str, Any] = {} if self._temperature is None else {"temperature": self._temperature}
                answer = client.chat.completions.create(model=model or self._model or "reef", messages=list(messages), **given)  # type: ignore[arg-type]
            except openai.OpenAIError as error:
                raise UpstreamError(f"the model did not answer: {error}", hint="Is the upstream up? See `reef status`.") from error
        text = answer.choices[0].message.content if answer.choices else None
        if not text:
            raise UpstreamError("the model answered without text", hint="Try another model: --set upstream.model=NAME")
        return text
