"""The whole of serve.yaml, with what one section must know of another."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from reef.config.keeping import AuthConfig, RehearsalConfig, ScenariosConfig, StorageConfig, TelemetryConfig
from reef.config.learning import EvaluationConfig, ExecutionConfig, LearnerConfig, TrainingConfig
from reef.config.releasing import ReleaseConfig
from reef.config.section import Section
from reef.config.serving import ENGINE, JUDGE, NEED_URL, Alias, ListenConfig, ServingConfig, Targets, UpstreamConfig, UpstreamName


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
    serving: ServingConfig = ServingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    execution: ExecutionConfig = ExecutionConfig()
    release: ReleaseConfig = ReleaseConfig()
    storage: StorageConfig = StorageConfig()
    scenarios: ScenariosConfig = ScenariosConfig()
    training: TrainingConfig = TrainingConfig()
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
        first = {"upstream": self.upstream} if self.upstream.url or self.upstream.kind not in NEED_URL else {}
        engine = {ENGINE: self.serving.vllm.upstream} if self.serving.vllm.wanted else {}
        judge = {JUDGE: self.serving.vllm.judge_upstream} if self.judges_full_weights else {}
        return first | engine | self.upstreams | judge

    @property
    def _own_upstreams(self) -> dict[str, str]:
        """Upstreams that are there without being configured as such, and what each is."""
        engine = {ENGINE: "the engine of serving.vllm"} if self.serving.vllm.wanted else {}
        return engine | ({JUDGE: "the engine that full weights are judged on"} if self.judges_full_weights else {})

    @property
    def judges_full_weights(self) -> bool:
        """Whether candidates are whole models, which an engine of their own is started for."""
        return self.serving.vllm.wanted and self.training.method == "full"

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
            if name in self._own_upstreams:
                raise ValueError(f"upstreams.{name}: that is the name of {self._own_upstreams[name]}; choose another")
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


def with_engine(config: Config, *, model: str) -> Config:
    """The configuration with an engine that runs a model, unless it has one already."""
    if config.serving.vllm.wanted:
        return config
    data = config.model_dump(exclude_unset=True)
    data.setdefault("serving", {}).setdefault("vllm", {})["model"] = model
    return Config.model_validate(data)
