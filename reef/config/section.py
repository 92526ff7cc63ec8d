"""What every part of serve.yaml is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of serve.yaml; a key that is not in the schema is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
