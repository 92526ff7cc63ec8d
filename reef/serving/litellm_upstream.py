"""Any provider that LiteLLM knows, as an upstream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from reef.config import DIALECTS, UpstreamConfig
from reef.errors import PluginError
from reef.experience import jsontext
from reef.serving import litellm_library
from reef.serving.translation import Translator
from reef.serving.upstream import Answer, Upstream, WholeAnswer


class LiteLLMUpstream(Upstream):
    """Asks through LiteLLM. Its ``model`` is ``PROVIDER/MODEL``; the provider is fixed by that, whatever model a caller names.

    ``dialects`` say here what the server at ``url`` speaks: without ``responses`` among them, those are asked as chat completions.

    Raises:
        PluginError: LiteLLM is not installed.
    """

    SPEAKS = DIALECTS

    def __init__(self, config: UpstreamConfig, *, name: str) -> None:
        super().__init__(config, name=name)
        if not litellm_library.installed():
            raise PluginError(f"the upstream {name} needs LiteLLM", hint=litellm_library.INSTALL)
        self.dialects = DIALECTS
        provider, _, self.model = config.model.partition("/")
        self._translator = Translator(
            where=self.where,
            provider=provider,
            url=config.url,
            key=self.key,
            timeout_s=config.timeout_s,
            connect_timeout_s=config.connect_timeout_s,
            bridge=bool(config.dialects) and "responses" not in config.dialects,
        )

    async def open(self) -> None:
        """Begins to import the library, so that it is there when the first request comes; that one says so if it is broken."""
        self._loading = asyncio.create_task(litellm_library.library())
        self._loading.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        return await self._translator.post(path, body, headers=headers, query=query)

    async def models(self) -> Answer:
        """The one it is configured with: LiteLLM's list of a provider's models is not the list of what a key may ask for."""
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": self.name, "type": "model", "display_name": self.model}
        return WholeAnswer(jsontext.dumps({"object": "list", "data": [model]}), where=self.where)

    async def reachable(self, *, timeout_s: float = 2.0) -> bool:
        """Not asked: a provider is paid for each question."""
        return True
