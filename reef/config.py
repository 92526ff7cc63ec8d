"""serve.yaml: one pydantic schema, unknown keys refused, ``--set a.b=c`` and ``${ENV}`` understood.

Lives here: what can be configured, its defaults and its bounds. Not here: anything that acts on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from reef.errors import ConfigError

_ENV = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
REHEARSAL = "rehearsal"
DIALECTS = ("chat", "responses", "messages")
KINDS = ("openai", "anthropic", "vllm", "litellm", "rehearsal")
"""Upstreams that come with Reef; others are plugins."""
NEED_URL = frozenset({"openai", "anthropic", "vllm"})


class Section(BaseModel):
    """A part of serve.yaml; a key that is not in the schema is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LearnerConfig(Section):
    """``reef``: which recipe learns, and from how much."""

    recipe: str = Field("record", description="Name in `reef.recipes`, or a dotted name `package.module:Class`.")
    batch_size: int = Field(1, ge=1, le=100_000, description="Reports that make one step of learning.")
    max_staleness: int = Field(18, ge=0, description="Releases a record may lag behind the head and still be learned from.")
    poll_interval_s: float = Field(0.25, gt=0, le=60, description="How often the learner looks at the log.")
    options: dict[str, Any] = Field(default_factory=dict, description="The recipe's own options; the recipe checks them.")


class ListenConfig(Section):
    """``listen``: where the gateway answers."""

    host: str = Field("127.0.0.1", description="A non-loopback address needs a token.")
    workers: int = Field(
        1, ge=1, le=64, description="Gateway processes that share the address; limits of tokens are counted by each for itself."
    )
    port: int = Field(8900, ge=0, le=65535, description="0 picks a free port; `reef serve` prints it.")
    keep_alive_s: float = Field(15.0, ge=0, le=3600, description="Silence after which the client of a stream gets a comment; 0: never.")


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


class SplitsConfig(Section):
    """``evaluation.splits``: which share of the tasks is kept apart."""

    heldout: float = Field(0.0, ge=0, lt=1, description="Share of the groups of tasks that only confirm what did well on the others.")
    sealed: float = Field(0.0, ge=0, lt=1, description="Share that no candidate is judged on, until somebody asks for it.")

    @model_validator(mode="after")
    def _leave_some(self) -> Self:
        if self.heldout + self.sealed >= 1:
            raise ValueError("heldout and sealed must leave a share for the search")
        return self


class EvaluationConfig(Section):
    """``evaluation``: what a candidate is judged on, and what judging may cost."""

    tasks: str = Field(
        "",
        description="YAML task set, or a folder of Harbor tasks, relative to serve.yaml. Without one no candidate is released by itself.",
    )
    splits: SplitsConfig = SplitsConfig()
    judge_model: str = Field("", description="The model that the grader `judge` asks, through the gateway; empty: the default one.")
    adapter: str = Field("pi", description="Name in `reef.adapters`: the coding agent that runs the tasks.")
    alpha: float = Field(0.05, gt=0, lt=1, description="Bound on the chance that a useless candidate is ever released in the chain's life.")
    min_effect: float = Field(
        0.1, gt=0, lt=1, description="The smallest improvement worth a release; what is shown to be below is rejected early."
    )
    protect: tuple[str, ...] = Field(
        (), description="Tags: the tasks with such a tag are a group on which a candidate may not be worse. See also `protected` of a task."
    )
    max_cost_ratio: float | None = Field(
        None, gt=0, description="How many times the head's cost a better candidate's may be, in money or, without prices, in tokens."
    )
    max_latency_ratio: float | None = Field(None, gt=0, description="The same of how long the runs take.")
    max_pairs: int = Field(60, ge=1, description="Budget of paired trials for one candidate.")
    max_tokens: int | None = Field(None, ge=1, description="Budget of tokens for one candidate, in and out of both sides. Empty: any.")
    max_cost: float | None = Field(None, gt=0, description="Budget of money for one candidate; needs prices. Empty: any.")
    max_seconds: float = Field(1800.0, gt=0, description="Budget of wall time for one candidate.")
    price_in: float = Field(0.0, ge=0, description="What a million prompt tokens cost, in any currency.")
    price_out: float = Field(0.0, ge=0, description="What a million completion tokens cost.")
    trial_timeout_s: float = Field(120.0, gt=0, description="Bound on one trial.")
    parallel: int = Field(2, ge=1, le=256, description="Trials that run at the same time.")
    sandbox: str = Field("auto", pattern="^(auto|bubblewrap|none)$", description="`auto` takes bubblewrap where it works.")

    @model_validator(mode="after")
    def _money_needs_prices(self) -> Self:
        if self.max_cost is not None and not (self.price_in or self.price_out):
            raise ValueError("max_cost needs price_in or price_out")
        return self


class ReleaseConfig(Section):
    """``release``: what becomes of a candidate that was found better, and how long one is kept that was not."""

    hold: tuple[str, ...] = Field(
        ("extensions", "hooks", "settings"),
        description="What waits for a person (`reef promote`): folders and files at the top of a harness, and components "
        "(`harness`, `model`, `routing`).",
    )
    grace_days: float = Field(
        30.0, ge=0, le=36_500, description="How long after its end `reef gc` keeps the bytes of a candidate that was not released."
    )


class BudgetConfig(Section):
    """How much of a scenario's records is kept, and for how long."""

    max_bytes: ByteSize | None = Field(
        None, ge=1, description="What its records may hold, as stored: `500MB`, `20GiB`. What many records share comes on top. Empty: any."
    )
    max_age_days: float | None = Field(
        None, gt=0, le=36_500, description="How long a session is kept after its last request. Empty: for ever."
    )


class RetentionConfig(BudgetConfig):
    """``storage.retention``: how much is kept, and for how long. Nothing is dropped where nothing is said."""

    scenarios: dict[str, BudgetConfig] = Field(
        default_factory=dict, description="Budgets of single scenarios, by name: `max_bytes` and `max_age_days`, instead of those above."
    )
    grace_s: float = Field(
        3600.0, ge=0, le=30 * 86400, description="A session with a younger request is never dropped, whatever the budget."
    )
    interval_s: float = Field(60.0, ge=1, le=86400, description="How often the learner looks.")


class StorageConfig(Section):
    """``storage``: where experience and releases are kept."""

    dir: str = Field(".reef", description="State folder, relative to the working folder.")
    url: str = Field("", description="Database URL; empty means SQLite in the state folder.")
    record: bool = Field(
        True,
        description="Keep exchanges. When false, answers carry receipts of records that are nowhere: to measure, or to keep none.",
    )
    tokens: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Capture token ids and log-probabilities of upstreams that give them (vLLM); `auto`: if the recipe needs them.",
    )
    redact: bool = Field(True, description="Store well-known shapes of secrets as `[redacted:…]`; what is passed on is untouched.")
    retention: RetentionConfig = RetentionConfig()


class ScenariosConfig(Section):
    """``scenarios``: which workloads exist."""

    implicit: bool = Field(True, description="Create a scenario at its first use. When false, only `names` exist.")
    names: tuple[str, ...] = Field(("default",), description="Scenarios that exist from the start; the first is the default.")


class AuthConfig(Section):
    """``auth``: who may call."""

    token_env: str = Field("REEF_TOKEN", description="Environment variable with the token. Unset: open, on loopback only.")


class TelemetryConfig(Section):
    """``telemetry``: traces of exchanges, for OpenTelemetry."""

    otlp_endpoint: str = Field("", description="Where spans go, by OTLP over HTTP: `http://HOST:4318`. Empty: nowhere.")

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return url.rstrip("/")


class RehearsalConfig(Section):
    """``rehearsal``: the script of the stand-in model, used when `upstream.url` is `rehearsal`."""

    proposals: tuple[str, ...] = Field(
        ("harmful", "useful"), description="What its proposer answers, attempt by attempt: useful, useless, harmful, invalid."
    )


class Config(Section):
    """The whole of serve.yaml."""

    reef: LearnerConfig = LearnerConfig()
    listen: ListenConfig = ListenConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    upstreams: dict[UpstreamName, UpstreamConfig] = Field(
        default_factory=dict, description="More of them, by name. The first of all, `upstream` before these, is the default."
    )
    models: dict[Alias, Targets] = Field(
        default_factory=dict,
        description="Names for callers to ask for: each a list of `UPSTREAM` or `UPSTREAM/MODEL`, tried in this order.",
    )
    evaluation: EvaluationConfig = EvaluationConfig()
    release: ReleaseConfig = ReleaseConfig()
    storage: StorageConfig = StorageConfig()
    scenarios: ScenariosConfig = ScenariosConfig()
    auth: AuthConfig = AuthConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    rehearsal: RehearsalConfig = RehearsalConfig()
    base_dir: str = Field("", description="Folder that relative paths in this file start from; the file's own by default.")

    @property
    def state_dir(self) -> Path:
        """The state folder, absolute."""
        return Path(self.storage.dir).absolute()

    @property
    def database_url(self) -> str:
        """The SQLAlchemy URL of the database."""
        return self.storage.url or f"sqlite:///{self.state_dir / 'reef.db'}"

    @property
    def named_upstreams(self) -> dict[str, UpstreamConfig]:
        """Every upstream by its name, the default first."""
        return ({"upstream": self.upstream} if self.upstream.url or self.upstream.kind not in NEED_URL else {}) | self.upstreams

    @property
    def default_model(self) -> str:
        """The model of the default upstream; empty where the caller has the choice."""
        return next((upstream.model for upstream in self.named_upstreams.values()), "")

    @model_validator(mode="after")
    def _upstreams_fit(self) -> Self:
        known = self.named_upstreams
        for name, upstream in self.upstreams.items():
            if name == "upstream" and self.upstream.url:
                raise ValueError("upstreams.upstream: that is the name of the `upstream` section's; choose another")
            if upstream.kind in NEED_URL and not upstream.url:
                raise ValueError(f"upstreams.{name}.url: is needed for an upstream of kind {upstream.kind}")
        for name, upstream in known.items():
            if upstream.kind == "litellm" and "/" not in upstream.model.strip("/"):
                raise ValueError(f"the model of {name}: is needed as PROVIDER/MODEL, e.g. anthropic/claude-opus-4-1")
        for alias, targets in self.models.items():
            for target in targets:
                if target.partition("/")[0] not in known:
                    names = ", ".join(known) or "none"
                    raise ValueError(f"models.{alias}: {target.partition('/')[0]} is no upstream (there are: {names})")
        return self

    def path(self, relative: str) -> Path:
        """A path named in this file."""
        return Path(self.base_dir, relative).absolute()


def load(file: Path | None = None, *, settings: Iterable[str] = (), **sections: dict[str, Any]) -> Config:
    """Read and check a configuration.

    Args:
        file: serve.yaml; None starts from the defaults.
        settings: ``a.b=value`` strings that override the file; values are YAML.
        sections: whole or partial sections that override the file, as command line options do.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, a value is out of bounds or ``${NAME}`` is not set.
    """
    data: dict[str, Any] = {}
    where = "the command line"
    if file is not None:
        where = str(file)
        data = _read(file)
        data.setdefault("base_dir", str(file.absolute().parent))
    for name, values in sections.items():
        section = data.setdefault(name, {})
        section.update({key: value for key, value in values.items() if value is not None})
    for setting in settings:
        _set(data, setting)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise _explain(error, where) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", hint="Give the path of a serve.yaml with -c.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid YAML: {error}", hint="Mend the line named above.") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{file} must hold a mapping, not a {type(data).__name__}", hint="Start with `upstream:`.")
    expanded = _expand(data, str(file))
    assert isinstance(expanded, dict)
    return expanded


def _expand(value: Any, where: str) -> Any:
    """Replace ``${NAME}`` and ``${NAME:-default}`` in every string, from the environment."""
    if isinstance(value, dict):
        return {key: _expand(item, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, where) for item in value]
    if not isinstance(value, str):
        return value

    def lookup(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = os.environ.get(name, default)
        if found is None:
            raise ConfigError(f"{where} uses ${{{name}}}, which is not set", hint=f"export {name}=…, or write ${{{name}:-default}}.")
        return found

    return _ENV.sub(lookup, value)


def _set(data: dict[str, Any], setting: str) -> None:
    path, separator, text = setting.partition("=")
    keys = path.split(".")
    if not separator or not all(keys):
        raise ConfigError(f"--set {setting} is not of the form a.b=value", hint="Example: --set listen.port=9000")
    for key in keys[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise ConfigError(f"--set {setting}: {key} is a value, not a section", hint="See docs/reference/configuration.md.")
    data[keys[-1]] = yaml.safe_load(text)


def _explain(error: ValidationError, where: str) -> ConfigError:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        kind = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"]
        lines.append(f"{key}: {kind}" if key else kind.removeprefix("Value error, "))
    return ConfigError(f"{where}: " + "; ".join(lines), hint="Every key is listed in docs/reference/configuration.md.")
