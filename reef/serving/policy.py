"""Routing policies, and what weights are called beside others.

A routing policy is an artifact with a ``routing.yaml``::

    models:                     # what callers ask for: where it goes instead, an alias or UPSTREAM/MODEL
      gpt-5.2: local/qwen3-30b
    default: local/qwen3-30b    # for callers that name no model; may be left out

Instead of ``default``, ``choose`` has an arm picked for each session: :mod:`reef.serving.choosing`.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from reef.errors import InvalidTree
from reef.serving.choosing import Choice
from reef.serving.route import PLACEHOLDERS
from reef.types import JSON, Tree

FILE = "routing.yaml"


class Policy(BaseModel):
    """What ``routing.yaml`` holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: dict[str, str] = {}
    default: str = ""
    choose: Choice | None = None

    def target(self, named: JSON, *, session: str = "", body: Mapping[str, JSON] | None = None) -> str:
        """Where a request goes that names this model; empty leaves it where it is.

        Args:
            session: as its client named it; empty where it did not.
            body: the request.
        """
        if self.choose is not None and self.chooses(named):
            return self.choose.pick(session, body or {})
        if not isinstance(named, str):
            return self.default if named is None else ""
        return self.models.get(named) or (self.default if named in PLACEHOLDERS else "")

    def chooses(self, named: JSON) -> bool:
        """Whether the target of a request that names this model is an arm of ``choose``."""
        if self.choose is None:
            return False
        if not isinstance(named, str):
            return named is None
        return named not in self.models and (named in PLACEHOLDERS or named in self.choose.names)


def read(tree: Tree) -> Policy:
    """The policy of an artifact.

    Raises:
        InvalidTree: it has none, or one that cannot be read.
    """
    if FILE not in tree:
        raise InvalidTree(f"a routing policy without {FILE}", hint="It has `models` (a mapping), `default` and `choose`.")
    try:
        return Policy.model_validate(yaml.safe_load(tree[FILE].data) or {})
    except (yaml.YAMLError, UnicodeDecodeError, ValidationError) as error:
        raise InvalidTree(f"{FILE} is no routing policy: {error}", hint="It has `models` (a mapping), `default` and `choose`.") from None


def staged_name(scenario: str, version: str | int) -> str:
    """What weights are served as beside others: by the step of their release, or by their candidate."""
    return f"{scenario}.{version}"
