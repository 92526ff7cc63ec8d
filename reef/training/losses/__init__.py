"""What a trainer minimises: losses as pure functions on tensors, and a registry that makes one of a name and options.

:func:`load` gives a :class:`~reef.training.losses.contract.Loss` by name; each method's function stands in a module of its own and can be
called without the registry. Importing this package does not import torch; loading a loss does. Not here: forward passes, optimizers,
teachers and critics (the trainer), and where a reward comes from (the recipe).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from reef.errors import ConfigError
from reef.types import JSON

if TYPE_CHECKING:
    from reef.training.losses.contract import Loss

_NAMES = {
    "sao": "reef.training.losses.sao:SAO",
    "grpo": "reef.training.losses.grpo:GRPO",
    "ppo_clip": "reef.training.losses.ppo_clip:PPOClip",
    "ttt_discover": "reef.training.losses.ttt_discover:TTTDiscover",
    "openclaw_rl": "reef.training.losses.openclaw_rl:OpenClawRL",
    "distill": "reef.training.losses.distill:Distill",
    "sdpo": "reef.training.losses.distill:SDPO",
    "sdft": "reef.training.losses.distill:SDFT",
    "opd": "reef.training.losses.distill:OPD",
    "sft": "reef.training.losses.sft:SFT",
}


def names() -> tuple[str, ...]:
    """Every loss there is."""
    return tuple(_NAMES)


def load(name: str, *, options: Mapping[str, JSON] | None = None) -> Loss:
    """A loss by name.

    Args:
        options: of the loss's own :attr:`~reef.training.losses.contract.Loss.Options`; what is not given has its default.

    Raises:
        ConfigError: there is no such loss, or an option is unknown or out of its bounds.
    """
    if name not in _NAMES:
        raise ConfigError(f"there is no loss {name!r}", hint=f"There are: {', '.join(_NAMES)}.")
    module, _, kind = _NAMES[name].partition(":")
    loss: type[Loss] = getattr(importlib.import_module(module), kind)
    try:
        return loss(loss.Options(**(options or {})))
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(str(part) for part in first["loc"])
        known = ", ".join(loss.Options.model_fields)
        raise ConfigError(f"the loss {name}: {option}: {first['msg']}", hint=f"Its options are: {known}.") from None
