"""What every way of bringing weights into an engine has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from reef.errors import InvalidRequest, WeightSyncError

LORA_CONFIG = "adapter_config.json"
FULL_CONFIG = "config.json"


class WeightKind(StrEnum):
    """What the weights of a release are."""

    FULL = "full"
    LORA = "lora"


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one release or candidate, as they lie on the disk: written once, never changed."""

    name: str
    """What the engine calls them: :func:`release_name` or :func:`candidate_name`."""
    kind: WeightKind
    folder: Path
    """A Hugging Face folder (config.json, \\*.safetensors) or a peft one (adapter_config.json, adapter_model.safetensors)."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What staging did."""

    name: str
    digest: str
    """SHA-256 over names and bytes of all tensors, the same on every worker; of the adapter's file for a LoRA."""
    tensors: int
    """How many had to be sent."""
    size_bytes: int
    """Of those."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Swap:
    """What answers before and after, and the moment between. No token is sampled from ``paused_at`` to ``resumed_at``."""

    name: str
    previous: str
    paused_at: float
    """Unix seconds. Equal to ``resumed_at`` where nothing had to pause."""
    resumed_at: float

    @property
    def pause_s(self) -> float:
        """How long serving stood still."""
        return self.resumed_at - self.paused_at


@dataclass(frozen=True, slots=True)
class Served:
    """What one worker says that it serves."""

    engine: str
    """The engine's URL."""
    worker: int
    """Its rank within the engine."""
    name: str
    digest: str
    """As in :class:`Staged`; empty where the engine cannot tell."""


class WeightSync(ABC):
    """Brings weights into one or more engines that answer as one. Every call ends within its deadline, and one that fails leaves what
    served before serving: on all engines, under its own name.

    Example::

        sync.stage(weights)          # minutes, if it must be: users notice nothing
        swap = sync.activate(weights)
        sync.verify(weights)         # raises unless every worker serves just these bytes
        sync.roll_back()             # the parent's, to the bit
    """

    @abstractmethod
    def stage(self, weights: Weights, *, deadline_s: float = 600.0) -> Staged:
        """Bring the weights to every worker, beside those that serve.

        Raises:
            WeightSyncError: they did not arrive, with the rank that failed; they are staged nowhere then.
            WeightSyncTimeout: some rank did not answer within the deadline; the message names it.
        """

    @abstractmethod
    def activate(self, weights: Weights, *, deadline_s: float = 60.0) -> Swap:
        """Make staged weights what answers.

        Raises:
            WeightSyncError: they are not staged, or a worker could not take them.
            WeightSyncTimeout: an engine did not answer.
        """

    @abstractmethod
    def roll_back(self, *, deadline_s: float = 60.0) -> Swap:
        """Give back what answered before the last :meth:`activate`, to the bit.

        Raises:
            WeightSyncError: nothing did, or it is no longer there.
        """

    @abstractmethod
    def verify(self, weights: Weights, *, deadline_s: float = 60.0) -> tuple[Served, ...]:
        """Prove that just these weights answer, on every worker.

        Raises:
            WeightSyncError: some worker serves something else.
        """

    @abstractmethod
    def drop(self, name: str, *, deadline_s: float = 30.0) -> None:
        """Forget staged weights, as of a candidate that was rejected. No error where they are not known."""

    def restore(self, weights: Weights, *, deadline_s: float = 600.0) -> bool:
        """Make the engines serve these weights, as after a restart of one: nothing is done where they do so already.

        Returns:
            Whether something had to be done.
        """
        try:
            self.verify(weights)
        except WeightSyncError:
            self.stage(weights, deadline_s=deadline_s)
            self.activate(weights)
            self.verify(weights)
            return True
        return False


def release_name(scenario: str, step: int) -> str:
    """What the engine calls the weights of a release."""
    return f"{scenario}.{step}"


def candidate_name(scenario: str, candidate: str) -> str:
    """What the engine calls the weights of a candidate. Never that of a release: those end in a number."""
    return f"{scenario}.{candidate}" if not candidate.isdecimal() else f"{scenario}.candidate-{candidate}"


def weights_in(folder: Path, *, name: str) -> Weights:
    """The weights that lie in a folder.

    Raises:
        InvalidRequest: there are none.
    """
    for kind, config in ((WeightKind.LORA, LORA_CONFIG), (WeightKind.FULL, FULL_CONFIG)):
        if (folder / config).is_file() and any(folder.glob("*.safetensors")):
            return Weights(name, kind, folder.resolve())
    raise InvalidRequest(
        f"{folder} holds no weights",
        hint=f"It needs *.safetensors beside {FULL_CONFIG} (full weights) or {LORA_CONFIG} (a LoRA). Pickled weights are not taken.",
    )
