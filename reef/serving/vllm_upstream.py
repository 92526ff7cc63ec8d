"""vLLM's server as an upstream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reef.config import DIALECTS
from reef.errors import UpstreamError
from reef.experience import jsontext
from reef.serving.engine import notes
from reef.serving.passthrough import HTTPUpstream
from reef.serving.upstream import Answer, WholeAnswer

BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""How many tokens an answer may have, in the three dialects."""
NEEDS_BOUND = "/messages"
"""The dialect whose requests must have one."""
ROOM = 4
"""An answer may always ask for this fraction of the context."""


class VLLMUpstream(HTTPUpstream):
    """vLLM's server: three dialects, and the ids and log-probabilities of every token.

    Agents ask for as many tokens as the models of large providers may answer with (Pi: 16,384). vLLM refuses what does not fit into its
    context together with the prompt, with 400, where those give what there is room for. So what was refused is asked once more without
    the bound, or in the dialect that needs one with a quarter of the context.
    """

    SPEAKS = DIALECTS
    GIVES_TOKENS = True

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        answer = await super().post(path, body, headers=headers, query=query)
        if answer.status != 400:
            return answer
        refused = await answer.read()
        shorter = await self._with_room(path, body)
        if shorter is not None:
            return await super().post(path, shorter, headers=headers, query=query)
        kept = [header for header in answer.headers() if header[0] != b"content-type"]
        return WholeAnswer(refused, where=self.where, status=answer.status, content_type=answer.content_type, headers=kept)

    async def _with_room(self, path: str, body: bytes) -> bytes | None:
        """The same request, asking for less; None where it does not ask for much."""
        try:
            asked = jsontext.loads(body)
            served: Any = jsontext.loads(await (await self.models()).read())
            context = max((int(model["max_model_len"]) for model in served["data"]), default=0)
        except (UpstreamError, ValueError, LookupError, TypeError):  # not what vLLM says of itself
            return None
        if not isinstance(asked, dict):
            return None
        large = [name for name in BOUNDS if isinstance(asked.get(name), int) and asked[name] > context // ROOM > 0]
        if not large:
            return None
        less = {name: context // ROOM for name in large} if path.endswith(NEEDS_BOUND) else {}
        return jsontext.dumps({**{name: value for name, value in asked.items() if name not in large}, **less})

    def _unreachable(self, error: Exception) -> UpstreamError:
        return notes.refusal(self.name) or super()._unreachable(error)
