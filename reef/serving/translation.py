"""LiteLLM between a caller and an upstream that does not speak the caller's dialect.

What a caller sent becomes keyword arguments of LiteLLM's own functions, by a list of the fields that belong to the dialect: LiteLLM also
takes addresses, keys, callbacks and canned answers as arguments, and none of those may come from a caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import Any

from reef.errors import InvalidRequest, UpstreamError, UpstreamTimeout
from reef.experience import jsontext
from reef.serving import litellm_library, wording
from reef.serving.upstream import Answer, Headers, WholeAnswer
from reef.types import JSON

CHAT, RESPONSES, MESSAGES, COUNT_TOKENS = "/chat/completions", "/responses", "/messages", "/messages/count_tokens"
_COMMON = frozenset({"tools", "tool_choice", "temperature", "top_p", "stream"})
FIELDS = {
    CHAT: _COMMON
    | {
        "messages", "parallel_tool_calls", "n", "stream_options", "stop", "max_tokens", "max_completion_tokens", "presence_penalty",
        "frequency_penalty", "logit_bias", "user", "response_format", "seed", "logprobs", "top_logprobs", "reasoning_effort", "functions",
        "function_call", "modalities", "audio", "prediction", "service_tier", "verbosity", "prompt_cache_key", "top_k", "min_p",
        "repetition_penalty", "thinking", "web_search_options",
    },
    RESPONSES: _COMMON
    | {
        "input", "instructions", "parallel_tool_calls", "max_output_tokens", "reasoning", "text", "include", "truncation", "user",
        "prompt_cache_key", "service_tier", "top_logprobs", "safety_identifier", "max_tool_calls",
    },
    MESSAGES: _COMMON | {"messages", "system", "max_tokens", "top_k", "stop_sequences", "thinking", "output_config"},
}  # fmt: skip
"""What of a caller's body reaches LiteLLM."""
NEEDED = {CHAT: ("messages",), RESPONSES: ("input",), MESSAGES: ("messages", "max_tokens")}
_MODEL = re.compile(r"(?!.*(\.\.|//))[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,255}")
"""Some providers put the model into a URL, or take it for one."""


class Translator:
    """Asks one place through LiteLLM, in whatever dialect it is asked itself.

    Args:
        where: who answers, for records and errors.
        provider: LiteLLM's name for the kind of server.
        url: where to ask; empty leaves that to LiteLLM, which knows its providers' addresses.
        key: empty sends none; without a ``url`` LiteLLM then looks for the provider's own variable.
        prefix: put before the model's name to choose among a server's APIs.
        bridge: translate responses to chat completions even where LiteLLM thinks the provider knows them.
    """

    def __init__(
        self,
        *,
        where: str,
        provider: str,
        url: str,
        key: str,
        timeout_s: float,
        connect_timeout_s: float,
        prefix: str = "",
        bridge: bool = False,
    ) -> None:
        self.where = where
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._prefix = prefix
        self._bridge = bridge
        self._key = key
        self._fixed: dict[str, Any] = {"custom_llm_provider": provider, "max_retries": 0, "drop_params": True}
        if url:
            self._fixed["api_base"] = url
        if url or key:
            self._fixed["api_key"] = key or "none"  # without one LiteLLM would send a key meant for another place

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], query: bytes = b"") -> Answer:
        """Like :meth:`reef.serving.upstream.Upstream.post`.

        Raises:
            InvalidRequest: what cannot be translated.
            UpstreamError: no answer, or one with a status of 500 or above.
            UpstreamTimeout: none within the bounds.
        """
        asked = jsontext.loads(body)
        lite = await litellm_library.library()
        if path == COUNT_TOKENS:
            return await self._count(lite, asked)
        arguments = self._arguments(path, asked)
        call = {CHAT: lite.acompletion, RESPONSES: lite.aresponses, MESSAGES: self._messages_call(lite, arguments)}[path]
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await call(**arguments, timeout=lite.httpx.Timeout(self._timeout_s, connect=self._connect_timeout_s))
        except TimeoutError:
            raise self._late() from None
        except Exception as error:  # noqa: BLE001 - LiteLLM has no bound on what it raises
            return self._refusal(lite, path, error)
        if hasattr(answer, "__aiter__"):
            return TranslatedStream(answer, words=wording.STREAMED[path](), translator=self, lite=lite)
        return WholeAnswer(wording.whole(path, answer), where=self.where)

    def _arguments(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """The call of LiteLLM that a body amounts to."""
        arguments = {name: value for name, value in asked.items() if name in FIELDS[path] and value is not None}
        model = asked.get("model")
        if not isinstance(model, str) or not _MODEL.fullmatch(model):
            raise InvalidRequest("the model's name cannot be passed on", hint='Name the model to ask for: {"model": "…"}.')
        if missing := [name for name in NEEDED[path] if name not in arguments]:
            raise InvalidRequest(f"{missing[0]} is missing", hint="The request is translated for the upstream, which needs it.")
        if asked.get("previous_response_id") or asked.get("background"):
            raise InvalidRequest(
                "previous_response_id and background need an upstream that speaks responses itself", hint="Send the whole input each time."
            )
        if isinstance(tools := arguments.get("tools"), list):
            arguments["tools"] = [tool for tool in tools if not _is_ours_to_run(tool)]
        if path == RESPONSES and self._bridge:
            arguments["use_chat_completions_api"] = True
        prefix = self._prefix if path != RESPONSES else ""
        return {**arguments, **self._fixed, "model": prefix + model}

    def _messages_call(self, lite: Any, arguments: dict[str, Any]) -> Any:
        """What answers a request in the messages dialect.

        LiteLLM streams from a provider of that dialect (Claude on Bedrock, Vertex …) through its own proxy, whose many dependencies come
        with no extra of ours. Its other way, over chat completions, is taken for those.
        """
        provider = self._fixed["custom_llm_provider"]
        native = provider in set(lite.LlmProviders) and lite.utils.ProviderConfigManager.get_provider_anthropic_messages_config(
            model=arguments["model"], provider=lite.LlmProviders(provider)
        )
        if not native or not arguments.get("stream"):
            return lite.anthropic.messages.acreate
        from litellm.llms.anthropic.messages.adapters.handler import LiteLLMMessagesToCompletionTransformationHandler as Adapter

        return Adapter.async_anthropic_messages_handler

    async def _count(self, lite: Any, asked: dict[str, Any]) -> Answer:
        """About how many tokens a prompt has: by a tokenizer at hand, not by the model's own."""
        text = jsontext.dumps([asked.get(name) for name in ("system", "messages", "tools")]).decode("utf-8", "replace")
        count = await asyncio.to_thread(lite.token_counter, model="gpt-4o", text=text)
        return WholeAnswer(jsontext.dumps({"input_tokens": count}), where=self.where)

    def _refusal(self, lite: Any, path: str, error: Exception) -> Answer:
        """What went wrong before there was an answer: the provider's refusal as it was, anything else as an error."""
        status = getattr(error, "status_code", None)
        if isinstance(error, lite.Timeout):
            raise self._late() from None
        if isinstance(status, int) and 400 <= status < 500:
            headers: Headers = []
            if after := (getattr(error, "litellm_response_headers", None) or {}).get("retry-after"):
                headers.append((b"retry-after", str(after).encode("latin-1", "replace")))
            return WholeAnswer(
                jsontext.dumps(wording.refusal(path, error, self.tell(error))), where=self.where, status=status, headers=headers
            )
        raise UpstreamError(
            f"{self.where} gave no answer: {self.tell(error)}", hint="Is the model server running, and are its url and model right?"
        ) from None

    def tell(self, error: Exception) -> str:
        """What an error says, without the key."""
        text = " ".join(str(error).split())[:1000] or type(error).__name__
        return text.replace(self._key, "…") if self._key else text

    def _late(self) -> UpstreamTimeout:
        return UpstreamTimeout(
            f"{self.where} did not answer in time",
            hint=f"{self._connect_timeout_s:g} s to connect, {self._timeout_s:g} s of silence (upstream.timeout_s).",
        )


class TranslatedStream(Answer):
    """A stream of LiteLLM's as events of the caller's dialect."""

    status = 200
    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, events: Any, *, words: wording.Words, translator: Translator, lite: Any) -> None:
        self.where = translator.where
        self._translator = translator
        self._lite = lite
        self._source = events
        self._events = events.__aiter__()
        self._words = words
        self._over = False
        self._closing: asyncio.Task[None] | None = None

    def headers(self) -> Headers:
        return [(b"content-type", self.content_type.encode()), (b"cache-control", b"no-cache")]

    async def next(self) -> bytes:
        while not self._over:
            try:
                async with asyncio.timeout(self._translator._timeout_s):
                    event = await anext(self._events)
            except StopAsyncIteration:
                self._over = True
                return self._words.end(where=self.where)
            except TimeoutError:
                raise self._silent() from None
            except Exception as error:  # noqa: BLE001 - LiteLLM has no bound on what it raises
                if isinstance(getattr(error, "original_exception", error), self._lite.Timeout):
                    raise self._silent() from None
                raise UpstreamError(
                    f"{self.where} broke off in mid-answer ({self._translator.tell(error)})",
                    hint="Send the request again; what arrived is recorded as truncated.",
                ) from None
            if written := self._words.write(event, where=self.where):
                return written
        return b""

    def close(self) -> None:
        self._over = True
        if self._closing is None and (aclose := getattr(self._source, "aclose", None)) is not None:
            self._closing = asyncio.create_task(_quietly(aclose))
            _CLOSING.add(self._closing)
            self._closing.add_done_callback(_CLOSING.discard)

    def _silent(self) -> UpstreamTimeout:
        return UpstreamTimeout(f"{self.where} went silent in mid-answer", hint="upstream.timeout_s bounds the silence.")


_CLOSING: set[asyncio.Task[None]] = set()
"""Tasks that a loop alone would forget."""


async def _quietly(aclose: Any) -> None:
    with contextlib.suppress(Exception):  # nobody waits for this answer any more
        await aclose()


def _is_ours_to_run(tool: JSON) -> bool:
    """Whether LiteLLM would run a tool itself, as its own proxy does."""
    return isinstance(tool, dict) and str(tool.get("server_url", "")).startswith("litellm_proxy")
