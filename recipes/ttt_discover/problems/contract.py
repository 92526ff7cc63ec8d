"""What the author of a problem writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from reef import plugins
from reef.errors import ConfigError, PluginError

SHIPPED = {
    "circle_packing": "recipes.ttt_discover.problems.circle_packing:CirclePacking",
    "golomb_ruler": "recipes.ttt_discover.problems.golomb_ruler:GolombRuler",
    "low_autocorrelation": "recipes.ttt_discover.problems.low_autocorrelation:LowAutocorrelation",
}


class Refused(ValueError):
    """An answer that is no solution; the text says why."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A solution that holds, without any tolerance."""

    value: Fraction
    """What is to be as large as possible."""
    solution: str
    """In the form in which it is kept and shown to the model again."""


class Problem(ABC):
    """One problem of one size.

    Args:
        size: n.

    Raises:
        ConfigError: there is no such size.
    """

    name: ClassVar[str]

    def __init__(self, size: int) -> None:
        self.size = size

    @abstractmethod
    def prompt(self, best: str) -> str:
        """What the model is asked.

        Args:
            best: a solution to improve on; empty: from the start.
        """

    @abstractmethod
    def verify(self, answer: str) -> Verified:
        """Take the solution out of an answer and check it, exactly.

        Raises:
            Refused: it holds none.
        """

    @abstractmethod
    def score(self, value: Fraction) -> float:
        """A value as a score in [0, 1], for the reports."""


def named(spec: str) -> Problem:
    """The problem that ``NAME:SIZE`` names.

    Raises:
        ConfigError: there is none, or not of that size.
    """
    name, _, size = spec.rpartition(":")
    if not name or not size.isascii() or not size.isdigit() or len(size) > 6:
        raise ConfigError(f"{spec} names no problem", hint=f"Write NAME:SIZE, with a name of {', '.join(SHIPPED)} or package.module:Class.")
    try:
        kind = plugins.load("recipes.ttt_discover.problems", SHIPPED.get(name, name))
    except PluginError as error:
        raise ConfigError(f"there is no problem {name}", hint=f"There are {', '.join(SHIPPED)}, and package.module:Class.") from error
    if not (isinstance(kind, type) and issubclass(kind, Problem)):
        raise ConfigError(f"{name} is no problem", hint="Derive its class from recipes.ttt_discover.problems:Problem.")
    return kind(int(size))
