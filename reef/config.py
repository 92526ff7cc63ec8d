"""serve.yaml: one pydantic schema, unknown keys refused, ``--set a.b=c`` and ``${ENV}`` understood.

Lives here: what can be configured, its defaults and its bounds. Not here: anything that acts on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from reef.errors import ConfigError

_ENV = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
REHEARSAL = "rehearsal"
DIALECTS = ("chat", "responses", "messages")


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
    port: int = Field(8900, ge=0, le=65535, description="0 picks a free port; `reef serve` prints it.")


class UpstreamConfig(Section):
    """``upstream``: where answers come from."""

    url: str = Field("", description="Base URL with its `/v1`, or `rehearsal` for the stand-in model.")
    model: str = Field("", description="The model to ask for; empty keeps the caller's.")
    dialects: tuple[Literal["chat", "responses", "messages"], ...] = Field(
        ("chat",),
        min_length=1,
        description="What it speaks: `chat`, `responses`, `messages`. A server that speaks `messages` alone gets its key as `x-api-key`.",
    )
    key_env: str = Field("", description="Environment variable that holds the upstream's key; the key itself is never written down.")
    timeout_s: float = Field(600.0, gt=0, description="Bound on the silence between two pieces of an answer.")
    connect_timeout_s: float = Field(10.0, gt=0, description="Bound on connecting.")

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        if url and url != REHEARSAL and not url.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://, or be the word rehearsal")
        return url.rstrip("/")


class EvaluationConfig(Section):
    """``evaluation``: what a candidate is judged on, and what judging may cost."""

    tasks: str = Field("", description="YAML task set, relative to serve.yaml. Without one no candidate is released by itself.")
    adapter: str = Field("pi", description="Name in `reef.adapters`: the coding agent that runs the tasks.")
    alpha: float = Field(0.05, gt=0, lt=1, description="Bound on the chance that a useless candidate is ever released in the chain's life.")
    min_effect: float = Field(
        0.1, gt=0, lt=1, description="The smallest improvement worth a release; what is shown to be below is rejected early."
    )
    max_pairs: int = Field(60, ge=1, description="Budget of paired trials for one candidate.")
    max_seconds: float = Field(1800.0, gt=0, description="Budget of wall time for one candidate.")
    trial_timeout_s: float = Field(120.0, gt=0, description="Bound on one trial.")
    parallel: int = Field(2, ge=1, le=256, description="Trials that run at the same time.")
    sandbox: str = Field("auto", pattern="^(auto|bubblewrap|none)$", description="`auto` takes bubblewrap where it works.")


class StorageConfig(Section):
    """``storage``: where experience and releases are kept."""

    dir: str = Field(".reef", description="State folder, relative to the working folder.")
    url: str = Field("", description="Database URL; empty means SQLite in the state folder.")
    redact: bool = Field(True, description="Store well-known shapes of secrets as `[redacted:…]`; what is passed on is untouched.")


class ScenariosConfig(Section):
    """``scenarios``: which workloads exist."""

    implicit: bool = Field(True, description="Create a scenario at its first use. When false, only `names` exist.")
    names: tuple[str, ...] = Field(("default",), description="Scenarios that exist from the start; the first is the default.")


class AuthConfig(Section):
    """``auth``: who may call."""

    token_env: str = Field("REEF_TOKEN", description="Environment variable with the token. Unset: open, on loopback only.")


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
    evaluation: EvaluationConfig = EvaluationConfig()
    storage: StorageConfig = StorageConfig()
    scenarios: ScenariosConfig = ScenariosConfig()
    auth: AuthConfig = AuthConfig()
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
        lines.append(f"{key}: {kind}")
    return ConfigError(f"{where}: " + "; ".join(lines), hint="Every key is listed in docs/reference/configuration.md.")
