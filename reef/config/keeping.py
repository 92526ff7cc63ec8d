"""``storage``, ``scenarios``, ``auth``, ``telemetry`` and ``rehearsal``: what is kept, for whom, and who is told."""

from __future__ import annotations

from typing import Literal

from pydantic import ByteSize, Field, field_validator

from reef.config.section import Section


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
