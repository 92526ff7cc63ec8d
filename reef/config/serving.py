"""``listen``, ``upstream``, ``upstreams`` and ``serving``: where the gateway answers, and where its answers come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from reef.config.section import Section

REHEARSAL = "rehearsal"
ENGINE = "engine"
"""What the upstream is called that the engine of `serving.vllm` is."""
JUDGE = "judge"
"""And the one on which candidates with full weights are tried."""
DIALECTS = ("chat", "responses", "messages")
KINDS = ("openai", "anthropic", "vllm", "litellm", "rehearsal")
"""Upstreams that come with Reef; others are plugins."""
NEED_URL = frozenset({"openai", "anthropic", "vllm"})


class ListenConfig(Section):
    """``listen``: where the gateway answers."""

    host: str = Field("127.0.0.1", description="A non-loopback address needs a token.")
    workers: int = Field(
        1, ge=1, le=64, description="Gateway processes that share the address; limits of tokens are counted by each for itself."
    )
    port: int = Field(8900, ge=0, le=65535, description="0 picks a free port; `reef serve` prints it.")
    keep_alive_s: float = Field(15.0, ge=0, le=3600, description="Silence after which the client of a stream gets a comment; 0: never.")
    client_timeout_s: float = Field(
        300.0,
        ge=0,
        le=86_400,
        description="How long a client may take nothing of what is sent to it before it counts as gone and its upstream is stopped; "
        "0: for ever.",
    )


class UpstreamConfig(Section):
    """``upstream``: where answers come from. ``upstreams.NAME`` takes the same keys."""

    kind: str = Field("openai", description="Name in `reef.upstreams`, or a dotted name `package.module:Class`.")
    url: str = Field("", description="Base URL with its `/v1`, or `rehearsal` for the stand-in model.")
    model: str = Field("", description="The model to ask for; empty keeps the caller's. For `litellm`: `PROVIDER/MODEL`.")
    dialects: tuple[Literal["chat", "responses", "messages"], ...] = Field(
        (),
        description="What it speaks: `chat`, `responses`, `messages`; empty means what its kind does. "
        "A server that speaks `messages` alone gets its key as `x-api-key`.",
    )
    translate: bool = Field(True, description="Have LiteLLM (the extra `litellm`) translate what it does not speak; else that is refused.")
    key_env: str = Field("", description="Environment variable that holds the upstream's key; the key itself is never written down.")
    timeout_s: float = Field(600.0, gt=0, description="Bound on the silence between two pieces of an answer.")
    connect_timeout_s: float = Field(10.0, gt=0, description="Bound on connecting.")
    retries: int = Field(0, ge=0, le=10, description="Further tries where no answer has begun: no connection, nothing in time, 429, 5xx.")
    retry_wait_s: float = Field(10.0, gt=0, le=300, description="The longest wait before a retry; a longer `Retry-After` ends the tries.")

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        if url and url != REHEARSAL and not url.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://, or be the word rehearsal")
        return url.rstrip("/")

    @model_validator(mode="before")
    @classmethod
    def _rehearsal_is_a_kind_and_a_place(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if data.get("url") == REHEARSAL:
                return {**data, "kind": REHEARSAL}
            if data.get("kind") == REHEARSAL and not data.get("url"):
                return {**data, "url": REHEARSAL}
        return data


UpstreamName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Alias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Targets = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class JudgeEngineConfig(Section):
    """``serving.vllm.judge_engine``: the engine for candidates with full weights; all else is as in ``serving.vllm``."""

    port: int = Field(0, ge=0, le=65535, description="0 picks a free one.")
    nice: int = Field(10, ge=0, le=19, description="Priority below that of serving.")
    gpu_memory: float | None = Field(None, gt=0, le=1, description="Share of each GPU's memory that it may use. Empty: as the other's.")
    environment: dict[str, str] = Field(
        default_factory=dict, description="Further environment variables for it, as `CUDA_VISIBLE_DEVICES` to give it GPUs of its own."
    )


class VLLMConfig(Section):
    """``serving.vllm``: the engine that Reef runs, or one that runs already and is only watched."""

    model: str = Field(
        "", description="A folder, relative to serve.yaml, a name of `reef model list`, or one on Hugging Face. Empty: Reef runs no engine."
    )
    attach: str = Field("", description="URL of a vLLM that runs already, instead of `model`: it is watched, never started or stopped.")
    name: str = Field("", description="What callers call the model; empty: the last part of `model`. With `attach`: its name there.")
    host: str = Field("127.0.0.1", description="Address it listens on. It has no token of its own: leave it on loopback.")
    port: int = Field(0, ge=0, le=65535, description="0 picks a free one.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="What is computed in; `auto`: as the weights are. `float32` gives the log-probabilities of the trainer."
    )
    max_model_len: int | None = Field(None, ge=16, description="Longest prompt and answer together, in tokens. Empty: the model's own.")
    max_num_seqs: int = Field(16, ge=1, le=4096, description="Answers that are made at the same time; others wait.")
    lora_slots: int = Field(4, ge=0, le=1024, description="LoRAs that one step may use side by side; 0: none can be loaded.")
    max_lora_rank: Literal[8, 16, 32, 64, 128, 256] = Field(16, description="The largest rank of a LoRA.")
    max_loras: int = Field(64, ge=1, le=4096, description="LoRAs kept in the memory of the host; others are read again when asked for.")
    tool_parser: str = Field("hermes", description="How vLLM finds tool calls in an answer; empty: it does not look for any.")
    chat_template: str = Field(
        "",
        description="A Jinja2 file, relative to serve.yaml, that shows the conversation to the model, for one whose own template knows no "
        "tools, say; recipes read it too. Empty: the model's own.",
    )
    sync: Literal["auto", "gloo", "nccl", "ipc", "disk", "none"] = Field(
        "auto",
        description="How full weights are brought in while it serves. `auto`: by `ipc` where the sender sees the one GPU of the engine, "
        "else over gloo where the engine has Reef's worker, else from the disk; `nccl` needs a GPU of its own for the sender; `ipc` needs "
        "memory that both see, a GPU's or the machine's; `none` starts the engine without Reef's worker.",
    )
    sync_timeout_s: float = Field(600.0, gt=0, description="Bound on bringing full weights in; the old ones serve meanwhile and after it.")
    judge_engine: JudgeEngineConfig = JudgeEngineConfig()
    kv_cache_gib: int = Field(1, ge=1, le=4096, description="Memory for prompts and answers under way, on a machine without a GPU.")
    gpu_memory: float = Field(0.9, gt=0, le=1, description="Share of each GPU's memory that it may use.")
    tensor_parallel: int = Field(1, ge=1, le=64, description="GPUs that share one copy of the model.")
    extra_args: tuple[str, ...] = Field((), description="Further arguments for vLLM, after Reef's own, which they override.")
    environment: dict[str, str] = Field(default_factory=dict, description="Further environment variables for it.")
    key_env: str = Field("", description="With `attach`: the environment variable that holds its key.")
    startup_timeout_s: float = Field(600.0, gt=0, description="Bound on starting; then it is killed and started again.")
    health_timeout_s: float = Field(60.0, gt=0, description="How long it may give no sign of life before it is killed and started again.")
    timeout_s: float = Field(600.0, gt=0, description="Bound on the silence between two pieces of an answer.")

    @field_validator("attach")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return url.rstrip("/").removesuffix("/v1")

    @model_validator(mode="after")
    def _run_or_attached(self) -> Self:
        if self.model and self.attach:
            raise ValueError("model is for an engine that Reef runs, attach for one that runs already: set one of them")
        return self

    @property
    def wanted(self) -> bool:
        """Whether there is an engine at all."""
        return bool(self.model or self.attach)

    @property
    def url(self) -> str:
        """Its address, without ``/v1``. The port of one that Reef runs is 0 until the supervisor has found a free one."""
        return self.attach or self._address(self.port)

    @property
    def judge_url(self) -> str:
        """The same of the engine that full weights are judged on."""
        return self._address(self.judge_engine.port)

    def _address(self, port: int) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}"

    @property
    def served_name(self) -> str:
        """What callers call the model."""
        return self.name or self.model.rstrip("/").rpartition("/")[2]

    @property
    def upstream(self) -> UpstreamConfig:
        """It, as a place where answers come from."""
        return UpstreamConfig(kind="vllm", url=self.url + "/v1", model=self.served_name, key_env=self.key_env, timeout_s=self.timeout_s)

    @property
    def judge_upstream(self) -> UpstreamConfig:
        """The engine that full weights are judged on, as a place where answers come from. It calls its model by its candidate."""
        return UpstreamConfig(kind="vllm", url=self.judge_url + "/v1", timeout_s=self.timeout_s)

    def of_candidate(self, folder: str, *, name: str, dtype: str) -> VLLMConfig:
        """The engine that a candidate is judged on.

        Args:
            folder: of its weights.
            name: what it is asked for as.
            dtype: what is computed in: a checkpoint is float32 whatever its base was.
        """
        own = self.judge_engine
        changed = {"model": folder, "attach": "", "name": name, "port": own.port, "key_env": "", "dtype": dtype, "lora_slots": 0}
        changed |= {"sync": "none", "environment": self.environment | own.environment, "gpu_memory": own.gpu_memory or self.gpu_memory}
        return self.model_copy(update=changed)


class ServingConfig(Section):
    """``serving``: the engines that Reef runs itself."""

    vllm: VLLMConfig = VLLMConfig()
