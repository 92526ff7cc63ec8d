"""serve.yaml: one pydantic schema, unknown keys refused, ``--set a.b=c`` and ``${ENV}`` understood.

Lives here: what can be configured, its defaults and its bounds. Not here: anything that acts on it.
"""

from reef.config.keeping import AuthConfig, BudgetConfig, RehearsalConfig, RetentionConfig, ScenariosConfig, StorageConfig, TelemetryConfig
from reef.config.learning import EvaluationConfig, ExecutionConfig, LearnerConfig, SplitsConfig, TrainingConfig
from reef.config.loading import load
from reef.config.releasing import CanaryConfig, ReleaseConfig, RolloutConfig, ShadowConfig
from reef.config.section import Section
from reef.config.serving import (
    DIALECTS,
    ENGINE,
    JUDGE,
    KINDS,
    NEED_URL,
    REHEARSAL,
    Alias,
    JudgeEngineConfig,
    ListenConfig,
    ServingConfig,
    Targets,
    UpstreamConfig,
    UpstreamName,
    VLLMConfig,
)
from reef.config.whole import Config, with_engine

__all__ = [
    "DIALECTS",
    "ENGINE",
    "JUDGE",
    "KINDS",
    "NEED_URL",
    "REHEARSAL",
    "Alias",
    "AuthConfig",
    "BudgetConfig",
    "CanaryConfig",
    "Config",
    "EvaluationConfig",
    "ExecutionConfig",
    "JudgeEngineConfig",
    "LearnerConfig",
    "ListenConfig",
    "RehearsalConfig",
    "ReleaseConfig",
    "RetentionConfig",
    "RolloutConfig",
    "ScenariosConfig",
    "Section",
    "ServingConfig",
    "ShadowConfig",
    "SplitsConfig",
    "StorageConfig",
    "Targets",
    "TelemetryConfig",
    "TrainingConfig",
    "UpstreamConfig",
    "UpstreamName",
    "VLLMConfig",
    "load",
    "with_engine",
]
