"""``release``: what becomes of a candidate that was found better."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from reef.config.section import Section


class CanaryConfig(Section):
    """``release.rollout.canary``: on how many a candidate is tried, and for how long."""

    share: float = Field(0.1, gt=0, lt=1, description="Share of the sessions, of a harness of the installations, that get the candidate.")
    min_reports: int = Field(
        20, ge=1, le=100_000, description="Sessions on the candidate that must have been reported on, with a score, before it is released."
    )
    max_days: float = Field(14.0, gt=0, le=3650, description="How long it may take; undecided by then is inconclusive.")


class ShadowConfig(Section):
    """``release.rollout.shadow``: how much recorded traffic a candidate answers."""

    sessions: int = Field(5, ge=1, le=1000, description="The newest sessions of users that it answers.")
    requests: int = Field(50, ge=1, le=10_000, description="Of weights and routing: the most recorded requests that are asked again.")


class RolloutConfig(Section):
    """``release.rollout``: what becomes of a candidate that the gate promoted."""

    mode: Literal["immediate", "canary", "shadow"] = Field(
        "immediate",
        description="`immediate` releases it. `canary` gives it to a share of the sessions first, and goes by what is reported on them. "
        "`shadow` has it answer recorded traffic, and holds it for a person.",
    )
    canary: CanaryConfig = CanaryConfig()
    shadow: ShadowConfig = ShadowConfig()

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"mode": data}
        if isinstance(data, dict) and "mode" not in data and len(named := data.keys() & {"canary", "shadow"}) == 1:
            (mode,) = named
            return {**data, "mode": mode, mode: data[mode] or {}}
        return data


class ReleaseConfig(Section):
    """``release``: what becomes of a candidate that was found better, and how long one is kept that was not."""

    rollout: RolloutConfig = RolloutConfig()

    hold: tuple[str, ...] = Field(
        ("extensions", "hooks", "settings"),
        description="What waits for a person (`reef promote`): folders and files at the top of a harness, and components "
        "(`harness`, `model`, `routing`).",
    )
    grace_days: float = Field(
        30.0, ge=0, le=36_500, description="How long after its end `reef gc` keeps the bytes of a candidate that was not released."
    )
