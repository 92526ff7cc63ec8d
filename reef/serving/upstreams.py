"""All the upstreams of a gateway, and the rule by which a request's ``model`` picks among them.

An alias of ``models`` comes first; else ``UPSTREAM/MODEL`` names an upstream and a model there; anything else goes to the default
upstream, the first. Of an alias's upstreams, those that speak the caller's dialect come first, then those for which LiteLLM translates;
within each the order is as configured.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any, Self

from reef import plugins
from reef.config import DIALECTS, JUDGE, Config
from reef.errors import InvalidRequest, PluginError, UpstreamError
from reef.experience import jsontext
from reef.serving import litellm_library
from reef.serving.route import Route, Target
from reef.serving.translation import Translator
from reef.serving.upstream import Answer, Upstream, WholeAnswer
from reef.types import JSON

LISTING_S = 5.0
"""Bound on asking one upstream for its models where several are asked."""


class Upstreams:
    """Use it as an async context manager, inside the event loop that will ask.

    Args:
        config: the whole of the configuration.

    Raises:
        PluginError: there is no such kind of upstream, or what it needs is not installed.
    """

    def __init__(self, config: Config) -> None:
        self.named: dict[str, Upstream] = {name: _build(name, section) for name, section in config.named_upstreams.items()}
        hidden = JUDGE if config.judges_full_weights else ""
        self.shown = {name: upstream for name, upstream in self.named.items() if name != hidden}
        """Those that are for users: not the engine that candidates are judged on, which mostly is not there."""
        self.aliases = tuple(config.models)
        self._translators = {name: _translator(upstream) for name, upstream in self.named.items()}
        self._default = {dialect: self._route(dialect, [(name, "") for name in self.named][:1]) for dialect in DIALECTS}
        self._aliases = {
            dialect: {alias: self._route(dialect, self._targets(alias, targets)) for alias, targets in config.models.items()}
            for dialect in DIALECTS
        }
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            for upstream in self.named.values():
                stack.push_async_callback(upstream.close)
                await upstream.open()
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def route(self, dialect: str, model: JSON) -> Route:
        """Where a request goes.

        Args:
            dialect: ``chat``, ``responses`` or ``messages``.
            model: what the request's body names, whatever that is.

        Raises:
            InvalidRequest: nobody there speaks the dialect.
            UpstreamError: no upstream is configured.
        """
        route = self._default[dialect]
        if type(model) is str:
            found = self._aliases[dialect].get(model, route)
            if found is route and "/" in model:
                found = self._named(dialect, model, otherwise=route)
            route = found
        if route is None:
            raise self._unspoken(dialect)
        return route

    @property
    def give_tokens(self) -> bool:
        """Whether any of them can give token ids."""
        return any(upstream.GIVES_TOKENS for upstream in self.named.values())

    def _targets(self, alias: str, targets: Iterable[str]) -> list[tuple[str, str]]:
        """An alias's targets by upstream and model. Without a model it is the upstream's, or else asked for by the alias's own name."""
        parts = (target.partition("/") for target in targets)
        return [(name, model or self.named[name].model or alias) for name, _, model in parts]

    def _named(self, dialect: str, model: str, *, otherwise: Route | None) -> Route | None:
        name, _, rest = model.partition("/")
        return self._route(dialect, [(name, rest)]) if rest and name in self.named and model not in self._aliases[dialect] else otherwise

    def _route(self, dialect: str, wanted: Iterable[tuple[str, str]]) -> Route | None:
        """A route over upstreams and models, as far as they speak the dialect or can be translated for."""
        spoken, translated = [], []
        for name, model in wanted:
            upstream, translator = self.named[name], self._translators[name]
            if dialect in upstream.dialects:
                spoken.append(Target(upstream, upstream, model))
            elif translator is not None:
                translated.append(Target(upstream, translator, model))
        return Route([*spoken, *translated]) if spoken or translated else None

    def _unspoken(self, dialect: str) -> InvalidRequest | UpstreamError:
        if not self.named:
            return UpstreamError("no upstream is configured", hint="Set upstream.url in serve.yaml, or use `reef serve --upstream URL`.")
        first = next(iter(self.named.values()))
        hint = f"If it does after all, add {dialect} to upstream.dialects, now [{', '.join(first.dialects)}]."
        if first.config.translate and not litellm_library.installed():
            hint += f" To have it translated: {litellm_library.INSTALL}"
        return InvalidRequest(f"the upstream does not speak the {dialect} dialect", hint=hint)

    async def models(self) -> Answer:
        """The models callers can ask for: the aliases, the default upstream's own, and the others' as ``UPSTREAM/MODEL``.

        A lone upstream's list is given in its own words.

        Raises:
            UpstreamError: there is but one upstream, and it does not answer.
        """
        if not self.named:
            raise self._unspoken("chat")
        if len(self.shown) == 1 and not self.aliases:
            return await next(iter(self.shown.values())).models()
        lists = await asyncio.gather(*(_list(upstream) for upstream in self.shown.values()))
        entries = [_entry(alias) for alias in self.aliases]
        for number, (name, listed) in enumerate(zip(self.shown, lists, strict=True)):
            others = [model for model in listed if model["id"] not in self.aliases]
            entries += [{**model, "id": f"{name}/{model['id']}"} for model in others] if number else others
        return WholeAnswer(jsontext.dumps({"object": "list", "data": entries, "has_more": False}), where="reef")

    async def reachable(self) -> dict[str, bool]:
        """Whether anything answers there, for each that is for users."""
        found = await asyncio.gather(*(upstream.reachable() for upstream in self.shown.values()))
        return dict(zip(self.shown, found, strict=True))


def _build(name: str, section: Any) -> Upstream:
    upstream = plugins.load("reef.upstreams", section.kind)(section, name=name)
    if not isinstance(upstream, Upstream):
        raise PluginError(f"{section.kind} is no upstream", hint="It must be a class below reef.serving.upstream:Upstream.")
    return upstream


def _translator(upstream: Upstream) -> Translator | None:
    """What translates for an upstream, if anything does."""
    config = upstream.config
    if not upstream.TRANSLATED or not config.translate or not upstream.url or not litellm_library.installed():
        return None
    provider, url, prefix = "hosted_vllm", upstream.url, ""  # LiteLLM's plainest client of an OpenAI-compatible server
    if "chat" not in upstream.dialects:
        if "messages" in upstream.dialects:
            provider, url = "anthropic", upstream.url + "/messages"
        else:
            prefix = "responses/"
    return Translator(
        where=upstream.where,
        provider=provider,
        url=url,
        key=upstream.key,
        timeout_s=config.timeout_s,
        connect_timeout_s=config.connect_timeout_s,
        prefix=prefix,
        bridge=True,
    )


def _entry(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "reef", "type": "model", "display_name": model}


async def _list(upstream: Upstream) -> list[dict[str, Any]]:
    """An upstream's models; none where it does not tell."""
    try:
        async with asyncio.timeout(LISTING_S):
            answer = await upstream.models()
            try:
                body = jsontext.loads(await answer.read())
            finally:
                answer.close()
    except (UpstreamError, TimeoutError, ValueError):
        return []
    listed = body.get("data") if isinstance(body, dict) else None
    if not isinstance(listed, list):
        return []
    return [model for model in listed if isinstance(model, dict) and isinstance(model.get("id"), str)]
