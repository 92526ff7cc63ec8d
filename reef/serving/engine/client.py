"""The administrative calls to a vLLM server: health, LoRAs, pauses, caches, weights.

Every call has a connection of its own (after any HTTP 500 vLLM closes the one it came on, and these calls are few) and a bound on every
wait for the network. Safe to share between threads: it keeps nothing.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from reef.errors import ConfigError, EngineError, EngineTimeout

TIMEOUT_S = 10.0
LOAD_S = 120.0
"""Bound on loading a LoRA, which reads files."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_TOLD_CHARS = 500
"""How much of an engine's own words goes into an error."""


class EngineClient:
    """Asks one vLLM server.

    Args:
        url: its base URL, with or without ``/v1``.
        key: what it was started with as ``--api-key``, if it was.
        timeout_s: bound on connecting and on every silence, where a call has no bound of its own.

    Raises:
        ConfigError: that is no HTTP URL.

    Every method raises :class:`EngineTimeout` when the engine does not answer in time, and :class:`EngineError` when it cannot be reached
    or refuses.
    """

    def __init__(self, url: str, *, key: str = "", timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url.rstrip("/").removesuffix("/v1"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url} is not the URL of an engine", hint="It looks like http://127.0.0.1:8000.")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._parts = parts
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def health(self, *, timeout_s: float | None = None) -> bool:
        """Whether the engine behind the server lives; False where the server answers and says that it is dead."""
        status, _ = self._send("GET", "/health", None, timeout_s)
        return status == 200

    def models(self) -> tuple[str, ...]:
        """The names that can be asked for: the base model's, then those of the LoRAs."""
        listed = self.ask("GET", "/v1/models").get("data")
        return tuple(str(model["id"]) for model in listed if isinstance(model, dict) and "id" in model) if isinstance(listed, list) else ()

    def loras(self) -> frozenset[str]:
        """The names of the LoRAs alone."""
        listed = self.ask("GET", "/v1/models").get("data") or []
        return frozenset(str(model["id"]) for model in listed if isinstance(model, dict) and model.get("parent"))

    def load_lora(self, name: str, folder: Path, *, timeout_s: float = LOAD_S) -> None:
        """Load a LoRA under a name. Where the name is taken the engine refuses: a name is never given other weights."""
        self.ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.absolute())}, timeout_s=timeout_s)

    def unload_lora(self, name: str) -> None:
        """Forget a LoRA; requests under way on it go on to their end."""
        self.ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def pause(self, *, mode: Literal["keep", "wait", "abort"] = "keep", timeout_s: float | None = None) -> None:
        """Stop between two steps: ``keep`` freezes requests under way, ``wait`` lets them end first, ``abort`` ends them."""
        self.ask("POST", f"/pause?mode={mode}", timeout_s=timeout_s)

    def resume(self) -> None:
        """Go on after a pause."""
        self.ask("POST", "/resume")

    def is_paused(self) -> bool:
        """Whether it is paused."""
        return self.ask("GET", "/is_paused").get("is_paused") is True

    def reset_prefix_cache(self, *, running: bool = False) -> bool:
        """Forget what was computed for prompts.

        Args:
            running: also of requests under way, which then compute theirs again; without it their blocks keep the cache from being reset.

        Returns:
            Whether it was; False while requests under way hold blocks.
        """
        return self.ask("POST", f"/reset_prefix_cache?reset_running_requests={str(running).lower()}").get("success") is True

    def collective_rpc(
        self, method: str, *, args: Sequence[str] = (), kwargs: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> list[Any]:
        """Call a method of every worker, as of the worker extension.

        Args:
            args: strings alone; the method takes them apart.
            timeout_s: bound for the workers; the call itself waits a little longer, so that the engine's own error is what arrives.

        Returns:
            What each worker gave, by rank. Neither dict, list nor None comes as its string.
        """
        body = {"method": method, "args": list(args), "kwargs": dict(kwargs or {}), "timeout": timeout_s}
        results = self.ask("POST", "/collective_rpc", body, timeout_s=timeout_s + 5).get("results")
        return results if isinstance(results, list) else []

    def world_size(self) -> int:
        """How many workers there are."""
        size = self.ask("GET", "/get_world_size").get("world_size")
        if not isinstance(size, int):
            raise EngineError(f"{self.url} does not say how many workers it has", hint="Is it a vLLM with VLLM_SERVER_DEV_MODE=1?")
        return size

    def weight_version(self) -> str:
        """What was last given to :meth:`update_weight_version`, in the engine's words."""
        return str(self.ask("GET", "/weight_info").get("weight_version", ""))

    def update_weight_version(self, version: str) -> None:
        """Name the weights that are there now."""
        self.ask("POST", "/update_weight_version", {"new_version": version})

    def served(self) -> str:
        """The full weights by whose name it answers, ``default`` for those it was started with; empty where it cannot tell."""
        status, answer = self._send("GET", "/reef/served", None, None)
        try:
            told = json.loads(answer) if status == 200 else {}
        except ValueError:
            told = {}
        return str(told.get("name", "")) if told.get("follows") or told.get("name") == "default" else ""

    def follow_names(self, *, alias_s: float) -> None:
        """Have it answer by the name of its weights from here on: :mod:`reef.serving.sync.names`.

        Args:
            alias_s: how long the name before stays an alias after a swap.
        """
        status, _ = self._send("POST", "/reef/served", {"alias_s": alias_s}, None)
        if status != 200:
            raise EngineError(
                f"{self.url} cannot say which full weights it serves",
                hint="Start it with the flags of reef.serving.sync.choose:engine_flags.",
            )

    def metrics(self) -> dict[str, float]:
        """Counters and gauges, summed over their labels, by name."""
        from prometheus_client.parser import text_string_to_metric_families

        _, body = self._refused_if_not_ok("GET", "/metrics", None, None)
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(body.decode("utf-8", "replace")):
            if family.type in ("counter", "gauge"):
                for sample in family.samples:
                    if not sample.name.endswith("_created"):
                        sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Any other call. An answer that is no JSON object is given as ``{}``: several say only a word."""
        _, answer = self._refused_if_not_ok(method, path, body, timeout_s)
        try:
            parsed = json.loads(answer) if answer else {}
        except ValueError:
            return {}
        return parsed if isinstance(parsed, dict) else {}

    def _refused_if_not_ok(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None) -> tuple[int, bytes]:
        status, answer = self._send(method, path, body, timeout_s)
        if status >= 400:
            hint = "Its log has the details."
            if status == 404 and not path.startswith("/v1/models"):
                hint = "An engine that Reef did not start needs VLLM_SERVER_DEV_MODE=1 and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."
            raise EngineError(f"{self.url} refused {quote(path.partition('?')[0])} with {status}: {_told(answer)}", hint=hint)
        return status, answer

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None) -> tuple[int, bytes]:
        bound = self._timeout_s if timeout_s is None else timeout_s
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=bound)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._parts.path + path, data, self._headers)
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER_BYTES + 1)
        except TimeoutError:
            raise EngineTimeout(f"{self.url}{path} did not answer within {bound:g} s", hint="Is the machine overloaded?") from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise EngineError(
                f"{self.url}{path} cannot be reached: {reason}", hint="`reef status` says whether the engine runs."
            ) from error
        finally:
            connection.close()
        if len(answer) > MAX_ANSWER_BYTES:
            raise EngineError(f"{self.url}{path} answered with more than {MAX_ANSWER_BYTES >> 20} MiB", hint="That is no vLLM server.")
        return response.status, answer


def _told(answer: bytes) -> str:
    """The engine's own words, whatever shape its error has."""
    try:
        parsed = json.loads(answer)
    except ValueError:
        parsed = None
    error = parsed.get("error", parsed.get("detail")) if isinstance(parsed, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    text = str(error) if error else answer.decode("utf-8", "replace")
    return text.strip()[:MAX_TOLD_CHARS] or "no word"
